#ifndef AFT_MODEL_TOKENIZER_LOAD_TOKENIZER_H_
#define AFT_MODEL_TOKENIZER_LOAD_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/tokenizer.h"

namespace aft {

// Files of a tokenizer in a checkpoint's folder.
inline constexpr char kCharsFileName[] = "chars.json";   // "chars": ["a", "b", ...], id = place
inline constexpr char kVocabFileName[] = "vocab.json";   // "bpe": {"token": id}
inline constexpr char kMergesFileName[] = "merges.txt";  // "bpe": GPT-2's list of merges

// The tokenizer of config.json's `tokenizer.kind`: "bytes" (no files), "chars" or "bpe". Each of
// its ids is below `vocab_size`, that of the network: what Encode gives can be looked up. Errors
// name the file, the entry and the reason: NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(absl::string_view kind,
                                                               const std::string& checkpoint_dir,
                                                               int64_t vocab_size);

}  // namespace aft

#endif  // AFT_MODEL_TOKENIZER_LOAD_TOKENIZER_H_
