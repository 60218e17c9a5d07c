#ifndef AFT_MODEL_TOKENIZER_GPT2_SPLITTER_H_
#define AFT_MODEL_TOKENIZER_GPT2_SPLITTER_H_

#include "absl/strings/string_view.h"
#include "re2/re2.h"

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

}  // namespace aft

#endif  // AFT_MODEL_TOKENIZER_GPT2_SPLITTER_H_
