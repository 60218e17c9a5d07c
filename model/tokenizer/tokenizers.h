#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/tokenizer.h"

namespace aft {

// One token per byte: the vocabulary has 256 tokens and the id is the byte's value, so every text
// round-trips exactly. There is no end-of-text token (eos_id() is -1): sequences of a byte-level
// model end by their limits or by stop strings.
std::shared_ptr<const Tokenizer> MakeByteTokenizer();

// The entry of a character vocabulary that stands for every other character. It has no bytes of its
// own: decoding drops it.
inline constexpr char kUnknownCharacter[] = "<unk>";

// One token per Unicode character (code point). The id is the index in `characters`. Each entry is
// one character in UTF-8; one entry may be kUnknownCharacter. Without kUnknownCharacter, Encode
// refuses a text with any other character, and every text that it accepts round-trips exactly.
// There is no end-of-text token. INVALID_ARGUMENT names the entry.
absl::StatusOr<std::shared_ptr<const Tokenizer>> MakeCharTokenizer(
    std::vector<std::string> characters);

// The token that ends a text. Only its id ends a text: the same characters within a text are
// encoded like any others, so that a client cannot end a text by writing them.
inline constexpr char kEndOfText[] = "<|endoftext|>";

// Another token that ends a text.
struct EndOfText {
  std::string token;
  std::string named_by;  // the file and the field that say so, for errors
};

// Reads the eos_token of a tokenizer_config.json: a string, or an object with "content", as older
// versions write it. Returns nothing if it is null or if there is no such file. All other fields
// are ignored. Errors start with the path: INVALID_ARGUMENT.
absl::StatusOr<std::optional<EndOfText>> ReadEndOfText(const std::string& config_path);

// Byte-level byte-pair encoding as in GPT-2 (openai/gpt-2, src/encoder.py). Text is cut into pieces
// as GPT-2 does. Within each piece, of all neighbouring pairs that `merges_path` lists, the one
// that is listed first becomes one token, the leftmost first, until no such pair is left. Any bytes
// round-trip; bytes that are not UTF-8 count as symbols, one each. O(n log n) in the length,
// whatever the text is. A text with a byte that has no token is INVALID_ARGUMENT.
//
// `vocab_path`: {"token": id}, with every byte that UTF-8 has among the tokens. `merges_path`:
// "left right" lines, most preferred first, after an optional "#version" line. Both spell bytes as
// GPT-2's printable characters. A text ends with the token `eos` or, without it, with kEndOfText if
// that is in the vocabulary. The files are not trusted. Errors start with the path (and line):
// NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadBpeTokenizer(
    const std::string& vocab_path, const std::string& merges_path,
    const std::optional<EndOfText>& eos = {});

// Loads this encoding from a tokenizer.json, as Hugging Face's tokenizers writes it for GPT-2:
// model BPE, pre-tokenizer and decoder ByteLevel, no normalizer or NFC. If the file asks for
// anything else, the error names the field. With NFC the tokens are those of the text's form NFC.
// Truncation and padding are not applied, as in `transformers`.
//
// Added tokens that are not special are found in a text: the first one, and the longest of those
// that begin there. Their lstrip, rstrip and single_word must be false. Special tokens decode to
// nothing. As with tokenizers' encode_special_tokens, the characters of a special token are text,
// in which no added token with the same "normalized" is found.
//
// A text ends with the token that `config_path`, a tokenizer_config.json, names (ReadEndOfText).
// Without it, that is kEndOfText if it is a special token. Errors as above, with the field's name.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                                   const std::string& config_path);

// Makes it from the content of the file. Errors start with `path`.
absl::StatusOr<std::shared_ptr<const Tokenizer>> MakeJsonTokenizer(
    absl::string_view text, const std::string& path, const std::optional<EndOfText>& eos);

// RWKV's "World" encoding: the longest token with which the text begins, again and again. Any bytes
// round-trip. Id 0 ends a text and stands for no bytes.
//
// `path`: a vocabulary in the form of RWKV's rwkv_vocab_v20230424.txt, with every byte among the
// tokens. Line N (from 1) describes the token with the id N: the id, what Python's repr() writes
// for a str (which stands for its UTF-8) or for bytes, and the number of bytes, at most 1024.
// Examples are "11 '\n' 1" and "129 b'\x80' 1". The file is not trusted. Errors start with the path
// (and line): NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadWorldTokenizer(const std::string& path);

// The content of world/rwkv_vocab_v20230424.txt, 65,529 tokens, which is a part of the program.
absl::string_view ShippedWorldVocabulary();

// The names of a tokenizer's files in a checkpoint's folder.
inline constexpr char kCharsFileName[] = "chars.json";   // "chars": ["a", "b", ...], id = index
inline constexpr char kVocabFileName[] = "vocab.json";   // "bpe": {"token": id}
inline constexpr char kMergesFileName[] = "merges.txt";  // "bpe": GPT-2's list of merges
// "bpe": if this file exists, it is read in place of the two before.
inline constexpr char kTokenizerFileName[] = "tokenizer.json";
inline constexpr char kTokenizerConfigFileName[] = "tokenizer_config.json";  // "bpe": optional
inline constexpr char kWorldFileName[] = "rwkv_vocab_v20230424.txt";         // "world"
inline constexpr const char* kTokenizerFileNames[] = {kCharsFileName,           kVocabFileName,
                                                      kMergesFileName,          kTokenizerFileName,
                                                      kTokenizerConfigFileName, kWorldFileName};

// Loads the tokenizer for config.json's `tokenizer.kind`: "bytes" (no files), "chars", "bpe" or
// "world". All of its ids are below `vocab_size`, the network's, so that the network can look up
// every id that Encode returns. Errors name the file, the entry and the reason: NOT_FOUND,
// INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(absl::string_view kind,
                                                               const std::string& checkpoint_dir,
                                                               int64_t vocab_size);

// INVALID_ARGUMENT, which begins with `dir`, if a tokenizer of this kind has more tokens than a
// network with this vocab_size.
absl::Status CheckVocabulary(const Tokenizer& tokenizer, absl::string_view kind,
                             const std::string& dir, int64_t vocab_size);

// A tokenizer that adds these ids before and after the ids of every text, even an empty one. These
// ids stand for no bytes, even if the vocabulary has no special tokens.
std::shared_ptr<const Tokenizer> MakeFramedTokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                                     std::vector<int32_t> prefix,
                                                     std::vector<int32_t> suffix);

}  // namespace aft
