#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/tokenizer.h"

namespace aft {

// One token per byte: vocabulary 256, id = the byte's value, so every text round-trips exactly.
// There is no end-of-text token (eos_id() is -1): sequences of a byte-level model end by their
// limits or by stop strings.
std::shared_ptr<const Tokenizer> MakeByteTokenizer();

// The entry of a character vocabulary that stands for every other character. It has no bytes of its
// own: decoding drops it.
inline constexpr char kUnknownCharacter[] = "<unk>";

// One token per Unicode character (code point): id = its place in `characters`, each one character
// in UTF-8, or kUnknownCharacter once. Without that, Encode refuses a text with any other
// character, and every text that it accepts round-trips exactly. No end-of-text token.
// INVALID_ARGUMENT names the entry.
absl::StatusOr<std::shared_ptr<const Tokenizer>> MakeCharTokenizer(
    std::vector<std::string> characters);

// The token that ends a text. Only its id does: the same characters within a text are encoded as
// any others, so that nobody can end a text by writing them.
inline constexpr char kEndOfText[] = "<|endoftext|>";

// Byte-level byte-pair encoding as GPT-2's (openai/gpt-2, src/encoder.py): text is cut into pieces
// as GPT-2 does; within each, of all neighbouring pairs that `merges_path` lists, the one
// listed first becomes one token, the leftmost first, until none is left. Any bytes round-trip;
// bytes that are not UTF-8 count as symbols, one each. O(n log n) in the length, whatever the text.
//
// `vocab_path`: {"token": id}, every byte among the tokens; `merges_path`: "left right" lines, most
// wanted first, after an optional "#version" line. Both spell bytes as GPT-2's printable
// characters. The files are not trusted. Errors start with the path, and line: NOT_FOUND,
// INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadBpeTokenizer(const std::string& vocab_path,
                                                                  const std::string& merges_path);

// The same from a tokenizer.json, as Hugging Face's tokenizers writes it for GPT-2: model BPE,
// pre-tokenizer and decoder ByteLevel, no normalizer. What else the file may ask for is refused by
// its field. Truncation and padding are not applied, as `transformers` does not either.
//
// Added tokens that are not special are found in a text, the longest of those that begin first;
// their lstrip, rstrip and single_word must be false. Special tokens are not found there, as with
// tokenizers' encode_special_tokens, and decode to nothing.
//
// `config_path`: a tokenizer_config.json, of which "eos_token" counts: the token that ends a text.
// Without the file, or where it has none, that is kEndOfText if it is a special token. Errors as
// above, with the field's name.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                                   const std::string& config_path);

// Files of a tokenizer in a checkpoint's folder.
inline constexpr char kCharsFileName[] = "chars.json";   // "chars": ["a", "b", ...], id = place
inline constexpr char kVocabFileName[] = "vocab.json";   // "bpe": {"token": id}
inline constexpr char kMergesFileName[] = "merges.txt";  // "bpe": GPT-2's list of merges
// "bpe": counts in place of the two before, where it is there.
inline constexpr char kTokenizerFileName[] = "tokenizer.json";
inline constexpr char kTokenizerConfigFileName[] = "tokenizer_config.json";  // beside it, or not
inline constexpr const char* kTokenizerFileNames[] = {
    kCharsFileName, kVocabFileName, kMergesFileName, kTokenizerFileName, kTokenizerConfigFileName};

// The tokenizer of config.json's `tokenizer.kind`: "bytes" (no files), "chars" or "bpe". Each of
// its ids is below `vocab_size`, that of the network: what Encode gives can be looked up. Errors
// name the file, the entry and the reason: NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(absl::string_view kind,
                                                               const std::string& checkpoint_dir,
                                                               int64_t vocab_size);

// `tokenizer` with these ids around those of every text that it encodes, a text without tokens
// included.
std::shared_ptr<const Tokenizer> MakeFramedTokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                                     std::vector<int32_t> prefix,
                                                     std::vector<int32_t> suffix);

}  // namespace aft
