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
  // Appends to `out` all text that is complete with these `bytes`.
  void Append(absl::string_view bytes, std::string& out);

  // Whether `byte` continues the incomplete character at the end of the stream.
  bool Takes(char byte) const {
    const auto value = static_cast<uint8_t>(byte);
    return missing_ > 0 && lower_ <= value && value <= upper_;
  }

  // Ends the stream: an incomplete character becomes U+FFFD. The object can then take a new stream.
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

// Whether the byte of UTF-8 continues a character.
inline bool ContinuesUtf8(char byte) { return (static_cast<uint8_t>(byte) & 0xC0U) == 0x80U; }

// Replaces everything in `bytes` that is not valid UTF-8 by U+FFFD.
std::string ToValidUtf8(absl::string_view bytes);

// Untrusted `bytes` in a form that a message may quote: valid UTF-8, in which quotes and characters
// that are not printable are escaped. "..." replaces everything after the first `most` bytes.
std::string Shown(absl::string_view bytes, size_t most = 200);

}  // namespace aft
