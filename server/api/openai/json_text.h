#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aft::server::openai {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The most that a byte of JSON text can become while it is parsed: an entry of an object with a key
// of one letter, which is kept beside the object to find a second one.
inline constexpr size_t kBytesPerJsonByte = 32;

// An object from the text of a request. INVALID_ARGUMENT: it is none, is not UTF-8, has a key twice
// or is nested deeper than 32.
absl::StatusOr<Json> ParseObject(absl::string_view text);

// On one line; what is no UTF-8 becomes U+FFFD.
template <typename J>
std::string Dump(const J& json) {
  return json.dump(-1, ' ', false, J::error_handler_t::replace);
}

}  // namespace aft::server::openai
