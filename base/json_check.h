#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft {

// The faults of a JSON text.
struct JsonCheck {
  bool too_deep = false;  // if so, nothing else was checked
  // The position of the first wrong byte; the first byte of the text has 1. It is beyond the text
  // if the text ends too early. 0: the text is JSON in UTF-8.
  size_t wrong_byte = 0;
  std::string why;  // what is wrong with that byte; it may quote the text
  // The keys that lead to the first key which occurs twice in one object, that key included. Empty:
  // no key does.
  std::vector<std::string> twice;

  // These keys with dots between them. An empty key is shown as "".
  std::string TwicePath() const;
};

// Must be called before nlohmann::json parses a text that may be wrong. The parser takes a NUL for
// the end of its input, and keeps only the last value of a key that occurs twice. It copies and
// prints values by recursion, so they must not have too many levels. A parse with a callback could
// find all this, but it takes quadratic time for a list of objects.
JsonCheck CheckJson(absl::string_view text, int max_levels);

}  // namespace aft
