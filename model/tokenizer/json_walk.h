#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aft {

// Where a value stands in JSON text: keys, and places in arrays as numbers, from the outside in.
using JsonPath = std::vector<std::string>;

// Most levels of objects and arrays that WalkJson enters.
inline constexpr size_t kMaxJsonLevels = 16;

// Gives `take` every value of `text` in its order; of an object or array {} or [], before those
// within. Nothing is kept, so a hostile text costs no more memory than `take` keeps of it. Keys may
// come twice: that is for `take` to notice. Stops at the first error of `take`. INVALID_ARGUMENT:
// not valid JSON (a NUL included, which the parser would take for the end), or too many levels.
absl::Status WalkJson(
    absl::string_view text,
    const std::function<absl::Status(const JsonPath& path, const nlohmann::json& value)>& take);

// `value` as messages show it: "an object", "an array", or its text, escaped and shortened.
std::string ShownJson(const nlohmann::json& value);

}  // namespace aft
