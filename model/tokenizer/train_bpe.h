#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft {

// The tokenizer.json (kTokenizerFileName) of a byte-level BPE with at most `vocab_size` tokens.
// These are the 256 bytes, and then the most frequent pair of neighbouring tokens of `texts`, again
// and again, ties by the lower ids, as long as a pair occurs twice. Pairs do not cross the borders
// of GPT-2's pieces. Vocabulary, merges and their order are those of Hugging Face's tokenizers
// (BpeTrainer, min_frequency 2, initial_alphabet ByteLevel.alphabet()), except that pieces above
// 256 bytes are left out. There is no token that ends a text. REQUIRES: vocab_size >= 256.
std::string TrainBpe(const std::vector<absl::string_view>& texts, int64_t vocab_size);

// The chars.json (kCharsFileName) of the most frequent characters of `texts`, ties by code point.
// One entry of `vocab_size` is kept for kUnknownCharacter, which stands for all others and for
// bytes that are not UTF-8. REQUIRES: vocab_size >= 1.
std::string CollectCharacters(const std::vector<absl::string_view>& texts, int64_t vocab_size);

}  // namespace aft
