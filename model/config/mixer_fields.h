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

// These functions read, write and check the "mixer" object of config.json. They use one table of
// its fields, and KindSpec.

// Reads the object. INVALID_ARGUMENT names a field that is not of its type or not in its range.
// CheckConfigRules checks the rules between fields later.
absl::Status ReadMixerConfig(const nlohmann::json& json, MixerConfig* mixer);

// Leaves out fields at their defaults, unless the kind requires them.
nlohmann::ordered_json WriteMixerConfig(const MixerConfig& mixer);

// INVALID_ARGUMENT names a field that the kind does not use and that is not at its default.
absl::Status CheckUnusedFields(const MixerConfig& mixer);

}  // namespace aft
