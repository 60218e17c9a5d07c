#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace aft {

struct Utf8Character {
  char32_t point = 0;
  size_t size = 0;  // bytes; 0: no valid character starts here
};

// The first character of `text`. Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
// REQUIRES: text is not empty.
Utf8Character FirstCharacter(absl::string_view text);

// `point` as UTF-8. REQUIRES: a valid code point.
std::string EncodeUtf8(char32_t point);

}  // namespace aft
