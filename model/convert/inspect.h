#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/convert/sizing.h"
#include "nlohmann/json.hpp"

namespace aft {

// What a checkpoint's files say about it, all of them read and checked: config, every tensor,
// tokenizer. "weight_format" and "weight_bytes" are the file's; "state_bytes_per_sequence" is the
// memory of a live sequence, 0 where none is kept, and "state_bytes_per_token" what of it each
// token of context fills, 0 where the state does not grow. "sizing" is what serving it takes
// (sizing.h). null is no limit, no tokenizer, no end of text. Errors name file, key or tensor:
// NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS, RESOURCE_EXHAUSTED.
absl::StatusOr<nlohmann::ordered_json> Inspect(const std::string& dir,
                                               const SizingOptions& options = {});

// The same as lines of "name  value".
std::string InspectionText(const nlohmann::ordered_json& inspection);

}  // namespace aft
