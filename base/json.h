#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aft {

// Parsers and printers of JSON. A file that calls those of nlohmann_json itself takes 2 to 4 s
// longer to compile, because they are templates.

// Parses a whole text. Returns false, and null in `value`, if it is not JSON in UTF-8. If memory
// runs out, std::bad_alloc leaves `value` to its owner. CheckJson finds what this accepts although
// it should not.
bool ParseJson(absl::string_view text, nlohmann::json& value);

// The parts of a text, in order. Returns false after a parse_error, or if `take` stopped.
bool ParseJson(absl::string_view text, nlohmann::json_sax<nlohmann::json>& take);

// Writes JSON on one line, or on several with `indent` spaces for each level if it is not negative.
// Bytes that are not UTF-8 become U+FFFD.
std::string DumpJson(const nlohmann::json& value, int indent = -1);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace aft
