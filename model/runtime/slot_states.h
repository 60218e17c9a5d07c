#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/api/model_runner.h"
#include "model/runtime/step_rules.h"
#include "model/state/state_pool.h"

// The states in a runner's slots, the same for every device. Positions come from `sequences`.
namespace aft {

// ModelRunner::BindSlot: brings the state that `from` names into `slot`, and returns its position.
// `model`: the fingerprint of the network. INVALID_ARGUMENT: a snapshot of another model, or
// damaged; the slot is as it was. Other errors are those of the device.
absl::StatusOr<int64_t> TakeState(const StateSource& from, int32_t slot, uint64_t model,
                                  const StepRules& sequences, StatePool& states);

// ModelRunner::KeepSlot.
std::shared_ptr<const KeptState> KeepState(int32_t slot, const StepRules& sequences,
                                           const StatePool& states);

// ModelRunner::SnapshotSlot.
std::string SnapshotState(int32_t slot, uint64_t model, const StepRules& sequences,
                          const StatePool& states);

}  // namespace aft
