#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aft {

// `text` in normal form C: equivalent spellings of a character become one. The version of Unicode
// is that of utf8proc (15.0 in utf8proc 2.8). A text that is not valid UTF-8 stays as it is.
// O(n log n) for every text. Thread-safe.
std::string ToNfc(absl::string_view text);

}  // namespace aft
