#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "re2/re2.h"

// The steps of GPT-2's byte-level BPE that come before the merges. The tokenizer and its training
// share them.
namespace aft {

// Cuts text into the pieces within which GPT-2's byte-pair encoding merges; their concatenation is
// the text. Source: openai/gpt-2, src/encoder.py,
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// RE2 has no look-ahead, so runs of white space are cut by hand: all but the last character of a
// run that something follows, or the whole run at the end of the text. Thread-safe.
class Gpt2Splitter {
 public:
  Gpt2Splitter();

  // The first piece of `text`, at a cost that depends on the piece alone.
  // REQUIRES: text is not empty and valid UTF-8.
  absl::string_view FirstPiece(absl::string_view text) const;

 private:
  const re2::RE2 spaces_;
  const re2::RE2 words_;
};

// GPT-2 spells each byte as one printable character: those of Latin-1 as themselves, the other 68
// as U+0100 and up, in their order.
std::array<char32_t, 256> ByteSpelling();

// `text`, with every byte that is not UTF-8 replaced by one that is: a symbol of the same length.
std::string WithValidUtf8(absl::string_view text);

}  // namespace aft
