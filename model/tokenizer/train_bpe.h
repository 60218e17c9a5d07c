#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft {

// The tokenizer.json (kTokenizerFileName) of a byte-level BPE with at most `vocab_size` tokens:
// the 256 bytes, then the most frequent pair of neighbouring tokens of `texts` again and again,
// ties by the lower ids, as long as a pair occurs twice. Pairs do not cross the pieces that GPT-2
// cuts. Vocabulary, merges and their order are those of Hugging Face's tokenizers (BpeTrainer,
// min_frequency 2, initial_alphabet ByteLevel.alphabet()), but for pieces above 256 bytes, which
// have no part in it. There is no token that ends a text. REQUIRES: vocab_size >= 256.
std::string TrainBpe(const std::vector<absl::string_view>& texts, int64_t vocab_size);

// The chars.json (kCharsFileName) of the most frequent characters of `texts`, ties by code point.
// One entry of `vocab_size` is kept for kUnknownCharacter, which stands for all others and for
// bytes that are not UTF-8. REQUIRES: vocab_size >= 1.
std::string CollectCharacters(const std::vector<absl::string_view>& texts, int64_t vocab_size);

}  // namespace aft
