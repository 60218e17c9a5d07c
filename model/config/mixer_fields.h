#pragma once

#include "absl/status/status.h"
#include "model/config/config.h"
#include "nlohmann/json.hpp"

namespace aft {

// The "mixer" object of config.json, from one table of its fields and what KindSpec says of them.

// Every field is of its type and in its range; rules between fields are CheckConfigRules's.
absl::Status ReadMixerConfig(const nlohmann::json& json, MixerConfig* mixer);

// Fields at their defaults are left out, unless the kind requires them.
nlohmann::ordered_json WriteMixerConfig(const MixerConfig& mixer);

// INVALID_ARGUMENT names a field that the kind does not use and that is not at its default.
absl::Status CheckUnusedFields(const MixerConfig& mixer);

}  // namespace aft
