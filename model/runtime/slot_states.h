#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/api/model_runner.h"
#include "model/runtime/step_rules.h"
#include "model/state/state_pool.h"

// Functions over the states in a runner's slots, the same for every device. They take the positions
// of the sequences from `sequences`.
namespace aft {

// ModelRunner::BindSlot: brings the state that `from` names into `slot`, and returns its position.
// `model` is the fingerprint of the network. INVALID_ARGUMENT: the snapshot is damaged or of
// another model; the slot is as it was. Other errors are those of the device.
absl::StatusOr<int64_t> TakeState(const StateSource& from, int32_t slot, uint64_t model,
                                  const StepRules& sequences, StatePool& states);

// Implements ModelRunner::KeepSlot.
absl::StatusOr<std::shared_ptr<const KeptState>> KeepState(int32_t slot, KeptIn memory,
                                                           uint64_t model,
                                                           const StepRules& sequences,
                                                           const StatePool& states);

}  // namespace aft
