#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace aft {

// Turns a stream of bytes into valid UTF-8. A character that is incomplete at the end of a piece is
// held back; bytes that can never be valid become U+FFFD, one for each maximal subpart, as WHATWG's
// decoder and Python's errors="replace" do. The concatenated output depends only on the
// concatenated input, never on where it was split. Thread-compatible.
class Utf8Stream {
 public:
  // Appends to `out` what `bytes` decides.
  void Append(absl::string_view bytes, std::string& out);

  // The stream has ended: an incomplete character becomes U+FFFD. Ready for a new stream.
  void Flush(std::string& out);

 private:
  // The incomplete character: its bytes so far, how many are still to come, and the range of the
  // next one (narrower than 80..BF after E0, ED, F0, F4).
  std::array<char, 4> pending_{};
  size_t size_ = 0;
  size_t missing_ = 0;
  uint8_t lower_ = 0;
  uint8_t upper_ = 0;
};

// `bytes` with U+FFFD for what is not valid UTF-8.
std::string ToValidUtf8(absl::string_view bytes);

// `bytes` that nobody vouches for as a message may quote them: valid UTF-8, escaped where it is not
// printable or a quote, and "..." instead of what follows the first `most` bytes.
std::string Shown(absl::string_view bytes, size_t most = 200);

}  // namespace aft
