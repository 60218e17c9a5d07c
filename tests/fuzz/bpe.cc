// Byte-pair encoding. Sections: merges, whose tokens this target adds to a vocabulary of all bytes;
// a text. Decoding returns the text, and the tokens are those that a plain loop merges.
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/target.h"
#include "tests/support/temp_files.h"

namespace aft::fuzz {

const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 256};

namespace {

using Merge = std::pair<std::string, std::string>;

// GPT-2's spelling of every byte.
std::array<std::string, 256> Spelling() {
  std::array<std::string, 256> spelling;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > ' ' && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    spelling[byte] = EncodeUtf8(printable ? byte : next++);
  }
  return spelling;
}

// Repeats the first merge of the list that applies, at the first place, until no merge applies.
std::vector<std::string> NaiveMerge(std::vector<std::string> tokens,
                                    const std::vector<Merge>& merges) {
  for (size_t i = 0; i < merges.size();) {
    size_t at = 0;
    while (at + 1 < tokens.size() && Merge(tokens[at], tokens[at + 1]) != merges[i]) ++at;
    if (at + 1 >= tokens.size()) {
      ++i;
      continue;
    }
    tokens[at] += tokens[at + 1];
    tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(at) + 1);
    i = 0;
  }
  return tokens;
}

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::fuzz;
  static MemoryFile vocab_file;
  static MemoryFile merges_file;
  static const std::array<std::string, 256> spelling = Spelling();
  const std::vector<absl::string_view> sections = Sections(AsText(data, size), 2);

  nlohmann::json vocabulary;
  for (const std::string& byte : spelling) vocabulary[byte] = vocabulary.size();
  std::vector<Merge> merges;
  for (const absl::string_view line : absl::StrSplit(sections[0], '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2 || !IsUtf8(line)) continue;
    const std::string whole = parts[0] + parts[1];
    merges.emplace_back(parts[0], parts[1]);
    if (!vocabulary.contains(whole)) vocabulary[whole] = vocabulary.size();
  }
  vocab_file.Write(vocabulary.dump());
  merges_file.Write(std::string(sections[0]));
  const auto tokenizer = LoadBpeTokenizer(vocab_file.path(), merges_file.path());
  if (!tokenizer.ok()) {
    absl::string_view message = tokenizer.status().message();
    AFT_CHECK(absl::ConsumePrefix(&message, vocab_file.path()) ||
              absl::ConsumePrefix(&message, merges_file.path()));
    AFT_CHECK(IsMessage(message));
    return;
  }
  const absl::string_view text = sections[1];
  const auto ids = (*tokenizer)->Encode(text);
  AFT_CHECK(ids.ok());
  std::string decoded;
  std::vector<std::string> tokens;
  for (const int32_t id : *ids) {
    AFT_CHECK(id >= 0 && id < (*tokenizer)->vocab_size() && id != (*tokenizer)->eos_id());
    tokens.emplace_back((*tokenizer)->TokenBytes(id));
    decoded += tokens.back();
  }
  AFT_CHECK(decoded == text);
  // A text of letters is one piece, in which all merges may apply. A letter's spelling is itself.
  constexpr size_t kMostNaive = 200;
  const bool one_piece =
      text.size() <= kMostNaive && merges.size() <= kMostNaive &&
      absl::c_all_of(text, [](unsigned char c) { return absl::ascii_isalpha(c); });
  if (!one_piece) return;
  std::vector<std::string> letters;
  for (const char c : text) letters.emplace_back(1, c);
  AFT_CHECK(tokens == NaiveMerge(std::move(letters), merges));
}
