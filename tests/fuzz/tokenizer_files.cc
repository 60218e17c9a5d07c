// A tokenizer's files. A tokenizer that loads decodes what it has encoded. Sections: its kind,
// "json" for "bpe" in one file; chars.json, vocab.json, tokenizer.json or, for "world", the
// lines after those of all bytes; merges.txt or tokenizer_config.json; a text.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "tests/fuzz/target.h"
#include "tests/support/temp_files.h"

namespace aft::fuzz {

// A token of one byte takes four bytes of JSON, and a string in each of three tables.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 256};

namespace {

constexpr int64_t kMostTokens = 1000;

// A folder of files in memory.
struct Folder {
  Folder() {
    const auto link = [](const MemoryFile& file, const std::string& path) {
      std::filesystem::create_symlink(file.path(), path);
    };
    link(vocabulary, folder.File(kCharsFileName));
    link(vocabulary, folder.File(kVocabFileName));
    link(vocabulary, folder.File(kWorldFileName));
    link(merges, folder.File(kMergesFileName));
    link(vocabulary, one_file.File(kTokenizerFileName));
    link(merges, one_file.File(kTokenizerConfigFileName));
  }
  TempFolder folder;
  TempFolder one_file;
  MemoryFile vocabulary;
  MemoryFile merges;
};

std::string LinesOfAllBytes() {
  std::string lines;
  for (int i = 0; i < 256; ++i) absl::StrAppendFormat(&lines, "%d b'\\x%02x' 1\n", i + 1, i);
  return lines;
}

std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    AFT_CHECK(id >= 0 && id < tokenizer.vocab_size() && id != tokenizer.eos_id());
    text += std::string(tokenizer.TokenBytes(id));
  }
  return text;
}

// Returns `text` without the parts that the vocabulary does not have.
std::string Known(const Tokenizer& tokenizer, absl::string_view text) {
  std::string known;
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    const size_t size = character.size > 0 ? character.size : 1;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.TokenBytes(id) == text.substr(0, size)) known.append(text.data(), size);
    }
    text.remove_prefix(size);
  }
  return known;
}

// Checks that no other token is a longer match at the place of one of `ids`.
void CheckLongest(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const std::string text = Decode(tokenizer, ids);
  absl::string_view rest = text;
  for (const int32_t id : ids) {
    const size_t size = tokenizer.TokenBytes(id).size();
    for (int32_t other = 1; other < tokenizer.vocab_size(); ++other) {
      const absl::string_view bytes = tokenizer.TokenBytes(other);
      AFT_CHECK(bytes.size() <= size || !absl::StartsWith(rest, bytes));
    }
    rest.remove_prefix(size);
  }
}

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::fuzz;
  static Folder files;
  const std::vector<absl::string_view> sections = Sections(AsText(data, size), 4);
  absl::string_view kind = absl::StripSuffix(sections[0], "\n");
  const bool chars = kind == "chars";
  const bool json = kind == "json";
  if (json) kind = "bpe";
  const std::string path = json ? files.one_file.path() : files.folder.path();
  const bool world = kind == "world";
  if (kind != "bytes" && kind != "bpe" && !chars && !world) return;
  files.vocabulary.Write(absl::StrCat(world ? LinesOfAllBytes() : "", sections[1]));
  files.merges.Write(std::string(sections[2]));
  const auto tokenizer = LoadTokenizer(kind, path, kMostTokens);
  if (!tokenizer.ok()) {
    absl::string_view message = tokenizer.status().message();
    AFT_CHECK(absl::IsInvalidArgument(tokenizer.status()));
    AFT_CHECK(absl::ConsumePrefix(&message, path));
    AFT_CHECK(IsMessage(message));
    return;
  }
  const Tokenizer& loaded = **tokenizer;
  AFT_CHECK(loaded.vocab_size() >= 1 && loaded.vocab_size() <= kMostTokens);
  AFT_CHECK(loaded.eos_id() >= -1 && loaded.eos_id() < loaded.vocab_size());
  const absl::string_view text = sections[3];
  const absl::StatusOr<std::vector<int32_t>> ids = loaded.Encode(text);
  if (chars) {
    AFT_CHECK(ids.ok() || (IsMessage(ids.status().message()) && Known(loaded, text) != text));
    AFT_CHECK(!ids.ok() || Decode(loaded, *ids) == Known(loaded, text));
  } else if (ids.ok()) {
    const std::string decoded = Decode(loaded, *ids);
    AFT_CHECK(decoded == text || decoded == ToNfc(text));
  } else {
    // A byte that UTF-8 does not have needs no token.
    AFT_CHECK(kind == "bpe" && IsMessage(ids.status().message()) && !IsUtf8(text));
  }
  if (world) CheckLongest(loaded, *ids);
  // A character is its own token.
  for (int32_t id = 0; chars && id < loaded.vocab_size(); ++id) {
    const absl::string_view character = loaded.TokenBytes(id);
    if (character.empty()) continue;
    const auto own = loaded.Encode(character);
    AFT_CHECK(own.ok() && *own == std::vector<int32_t>{id});
  }
}
