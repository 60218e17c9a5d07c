#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "model/config/config.h"
#include "nlohmann/json.hpp"

namespace aft {

// Caps keep every product of sizes (weights, state bytes, offsets) far below 2^63.
inline constexpr int64_t kMaxWidth = int64_t{1} << 16;
inline constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();

// The "mixer" object of config.json, from one table of its fields and what KindSpec says of them.

// Every field is of its type and in its range; rules between fields are CheckConfigRules's.
absl::Status ReadMixerConfig(const nlohmann::json& json, MixerConfig* mixer);

// Fields at their defaults are left out, unless the kind requires them.
nlohmann::ordered_json WriteMixerConfig(const MixerConfig& mixer);

// INVALID_ARGUMENT names a field that the kind does not use and that is not at its default.
absl::Status CheckUnusedFields(const MixerConfig& mixer);

}  // namespace aft
