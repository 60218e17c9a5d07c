#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/api/load.h"
#include "model/config/config.h"
#include "model/state/slot_layout.h"

namespace aft {

// Reads the tuned states of the checkpoint in `dir` (FindStateFiles), in the order of their
// names. Each becomes a snapshot after one token: an RWKV-7 then takes its sums from the snapshot,
// where it would begin with zeros, and finds the vectors of the token shift zero, as before the
// first token of a text. `states` and `network`: the layers' states and the fingerprint of the
// network. Errors name file and tensor: INVALID_ARGUMENT (damaged, of another network, or the model
// takes no states), RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<InitialState>> ReadInitialStates(const std::string& dir,
                                                            const NetworkConfig& config,
                                                            absl::Span<const StateSpec> states,
                                                            uint64_t network);

}  // namespace aft
