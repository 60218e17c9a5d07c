#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server {

// Looks for stop strings in a stream of bytes, across the borders of its pieces. Bytes that may be
// the start of a stop string are held back until that is decided.
//
// The match that is complete first wins, and of several that end at the same byte the longest: both
// depend only on the bytes, never on where the stream was split.
//
// Cost: O(number of strings) per byte at most, amortised (Knuth-Morris-Pratt). Thread-compatible.
class StopMatcher {
 public:
  // Empty strings are ignored. `include_match`: the output ends after the match instead of before.
  StopMatcher(std::vector<std::string> strings, bool include_match);

  // Appends to `out` the bytes that are decided. True when a stop string is complete, unless none
  // `counts` that ends in these bytes: the output has ended, the rest of `bytes` is dropped, and
  // nothing may be appended any more.
  bool Append(absl::string_view bytes, std::string& out, bool counts = true);

  // The stream has ended without a match: the held bytes are output after all.
  void Flush(std::string& out);

  // The stop string that was found; empty before.
  const std::string& match() const { return match_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // border[i]: longest proper border of text[0, i]
    size_t matched = 0;          // longest prefix of text that the stream ends with
  };

  static void Advance(Pattern& pattern, char byte);

  std::vector<Pattern> patterns_;
  bool include_match_;
  std::string held_;  // the longest `matched` of all patterns
  std::string match_;
};

}  // namespace aft::server
