#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aft {

// The place of a value in JSON text: keys of objects, and indexes in arrays as numbers, from the
// outside in.
using JsonPath = std::vector<std::string>;

// The most levels of objects and arrays that WalkJson enters.
inline constexpr size_t kMaxJsonLevels = 16;

// Passes every value of `text` to `take`, in order. For an object or array it passes {} or []
// before the values inside. Nothing is kept, so a hostile text costs no more memory than `take`
// keeps of it. Keys may occur twice; `take` has to notice that. The walk stops at the first error
// of `take`. INVALID_ARGUMENT: not valid JSON (including a NUL, which the parser would treat as the
// end), or too many levels.
absl::Status WalkJson(
    absl::string_view text,
    const std::function<absl::Status(const JsonPath& path, const nlohmann::json& value)>& take);

// `value` in the form for messages: "an object", "an array", or its text in ASCII, shortened.
std::string ShownJson(const nlohmann::json& value);

}  // namespace aft
