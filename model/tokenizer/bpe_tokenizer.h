#ifndef AFT_MODEL_TOKENIZER_BPE_TOKENIZER_H_
#define AFT_MODEL_TOKENIZER_BPE_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/api/tokenizer.h"

namespace aft {

// The token that ends a text. Only its id does: the same characters within a text are encoded as
// any others, so that nobody can end a text by writing them.
inline constexpr char kEndOfText[] = "<|endoftext|>";

// Byte-level byte-pair encoding as GPT-2's (openai/gpt-2, src/encoder.py): text is cut into pieces
// (gpt2_splitter.h); within each, of all neighbouring pairs that `merges_path` lists, the one
// listed first becomes one token, the leftmost first, until none is left. Any bytes round-trip;
// bytes that are not UTF-8 count as symbols, one each. O(n log n) in the length, whatever the text.
//
// `vocab_path`: {"token": id}, every byte among the tokens; `merges_path`: "left right" lines, most
// wanted first, after an optional "#version" line. Both spell bytes as GPT-2's printable
// characters. The files are not trusted. Errors start with the path, and line: NOT_FOUND,
// INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadBpeTokenizer(const std::string& vocab_path,
                                                                  const std::string& merges_path);

}  // namespace aft

#endif  // AFT_MODEL_TOKENIZER_BPE_TOKENIZER_H_
