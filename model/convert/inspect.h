#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/convert/sizing.h"
#include "nlohmann/json.hpp"

namespace aft {

// A description of a checkpoint. It reads and checks all files: config, every tensor, tokenizer,
// tuned states.
// "weight_format" and "weight_bytes" are those of the file. "state_bytes_per_sequence" is the
// memory of a live sequence, 0 when no state is kept. "state_bytes_per_token" is the part of it
// that each token of context fills, 0 when the state does not grow. "sizing" has the resources that
// serving the model takes (sizing.h). "initial_states" has the names of tuned states, if there are
// any. null means no limit, no tokenizer or no end of text. Errors name the file, key or tensor:
// NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS, RESOURCE_EXHAUSTED.
absl::StatusOr<nlohmann::ordered_json> Inspect(const std::string& dir,
                                               const SizingOptions& options = {});

// Formats the description as lines of "name  value".
std::string InspectionText(const nlohmann::ordered_json& inspection);

}  // namespace aft
