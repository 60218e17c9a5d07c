#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aft::server::openai {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The most bytes of memory that a byte of JSON text can take while it is parsed. The worst case is
// an object with keys of one letter, because the parser also keeps a list of keys to find
// duplicates.
inline constexpr size_t kBytesPerJsonByte = 32;

// Frees a value without allocating. The destructor of a value allocates a list of its members, and
// ends the process if there is no memory for it. REQUIRES: the value is not nested deeply.
struct FreeJson {
  void operator()(Json* json) const;
};
using JsonPtr = std::unique_ptr<Json, FreeJson>;

// Parses the JSON object of a request; the result is not null. INVALID_ARGUMENT if `text` is not an
// object, is not UTF-8, has a key twice or is nested deeper than 32.
absl::StatusOr<JsonPtr> ParseObject(absl::string_view text);

// Writes a JSON string as DumpJson does. It is quick for text that needs no escapes.
std::string Quoted(const std::string& text);

// Appends a number, always with a fraction or an exponent. What is not finite becomes null.
void AppendNumber(double number, std::string& json);

}  // namespace aft::server::openai
