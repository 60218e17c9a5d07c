#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "re2/re2.h"

// The steps of GPT-2's byte-level BPE that come before the merges. The tokenizer and its training
// share them.
namespace aft {

// Cuts text into pieces; GPT-2's byte-pair encoding merges only within a piece. The concatenation
// of the pieces is the text. Source: openai/gpt-2, src/encoder.py,
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// RE2 has no look-ahead, so runs of white space are cut by code. If text follows a run, the piece
// is all of the run except its last character; otherwise it is the whole run. Thread-safe.
class Gpt2Splitter {
 public:
  Gpt2Splitter();

  // The first piece of `text`. The cost depends on the piece alone. REQUIRES: text is not empty and
  // valid UTF-8.
  absl::string_view FirstPiece(absl::string_view text) const;

 private:
  const re2::RE2 spaces_;
  const re2::RE2 words_;
};

// GPT-2 spells each byte as one printable character. Printable bytes of Latin-1 are spelled as
// themselves, the other 68 as U+0100 and up, in their order.
std::array<char32_t, 256> ByteSpelling();

// `text` with every invalid byte replaced by a symbol of one byte, so that it is valid UTF-8.
std::string WithValidUtf8(absl::string_view text);

}  // namespace aft
