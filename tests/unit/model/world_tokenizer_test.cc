#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int32_t kShippedTokens = 65529;

std::shared_ptr<const Tokenizer> Load(const std::string& vocabulary, int64_t vocab_size = 65536) {
  TempFolder folder;
  WriteBytes(folder.File(kWorldFileName), vocabulary);
  auto loaded = LoadTokenizer("world", folder.path(), vocab_size);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *loaded : nullptr;
}

// The message for a vocabulary that is refused, without the path.
std::string Refusal(const std::string& vocabulary) {
  TempFolder folder;
  const std::string path = folder.File(kWorldFileName);
  WriteBytes(path, vocabulary);
  const absl::Status status = LoadWorldTokenizer(path).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(path + ": ")));
  return std::string(status.message().substr(path.size() + 2));
}

// A line for each byte, and then one for each of `others`, which are literals and their lengths.
std::string Vocabulary(const std::vector<std::string>& others, const char* end = "\n") {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppendFormat(&text, "%d b'\\x%02x' 1%s", byte + 1, byte, end);
  }
  for (size_t i = 0; i < others.size(); ++i) absl::StrAppend(&text, 257 + i, " ", others[i], end);
  return text;
}

// The checksums of tests/parity/make_world_goldens.py.
class Fnv {
 public:
  void Add(uint64_t number) { value_ = (value_ ^ number) * 0x100000001B3; }
  void Add(const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) Add(static_cast<uint64_t>(id));
  }
  std::string Hex() const { return absl::StrFormat("%016x", value_); }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

TEST(WorldTokenizerTest, ReadsTheLiteralsThatPythonWrites) {
  const std::pair<const char*, std::string> cases[] = {
      {"'a b ' 4", "a b "},
      {R"('\\\'"' 3)", "\\'\""},
      {R"("it's" 4)", "it's"},
      {R"('\n\r\t\x00\x7f' 5)", std::string("\n\r\t\0\x7F", 5)},
      {"'é中😀' 9", "é中😀"},
      {R"('\x80\xad\u3000\U0001f600\U0010ffff' 15)", "\u0080\u00AD\u3000😀\U0010FFFF"},
      {R"(b'\xe4\xb8a' 3)", "\xE4\xB8\x61"},
      {R"(b"'\xff" 2)", "'\xFF"},
  };
  std::vector<std::string> lines;
  for (const auto& [line, bytes] : cases) lines.emplace_back(line);
  std::string text = Vocabulary(lines, "\r\n");
  for (const std::string& vocabulary : {text, text.substr(0, text.size() - 2), Vocabulary(lines)}) {
    const auto tokenizer = Load(vocabulary);
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(tokenizer->TokenBytes(static_cast<int32_t>(257 + i)), cases[i].second);
    }
  }
}

TEST(WorldTokenizerTest, RefusesEveryOtherLineAndNamesIt) {
  const char* must_have = "must be 2, a literal and its length";
  const char* literal = "is not a literal";
  const std::pair<std::string, std::string> cases[] = {
      {"", must_have},
      {"2 'b'", must_have},
      {"3 'b' 1", must_have},
      {"02 'b' 1", must_have},
      {"2 b 1", literal},
      {"2 ' 1", literal},
      {"2 'b\" 1", literal},
      {"2 'b'c' 3", literal},
      {"2  'b' 1", literal},
      {"2 r'b' 1", literal},
      {R"(2 '\' 1)", literal},
      {R"(2 '\a' 1)", literal},
      {R"(2 '\x4' 1)", literal},
      {R"(2 '\x+4' 1)", literal},
      {R"(2 '\u12' 1)", literal},
      {R"(2 '\ud800' 3)", literal},
      {R"(2 '\U00110000' 4)", literal},
      {R"(2 b'\u0041' 1)", literal},
      {"2 b'é' 2", literal},
      {"2 '\t' 1", literal},
      {"2 '\xE4\xB8' 2", literal},
      {"2 'b' +1", "the length must be 1"},
      {"2 'é' 1", "the length must be 2"},
      {"2 '' 0", "must have 1 to 1024 bytes, got 0"},
      {"2 '" + std::string(1025, 'x') + "' 1025", "must have 1 to 1024 bytes, got 1025"},
  };
  for (const auto& [line, reason] : cases) {
    EXPECT_THAT(Refusal("1 'a' 1\n" + line + "\n3 'c' 1\n"),
                testing::AllOf(StartsWith("line 2: "), HasSubstr(reason)))
        << line;
  }
  EXPECT_THAT(Refusal(""), StartsWith("line 1: "));
  EXPECT_EQ(Refusal(Vocabulary({"'ab' 2", "'cd' 2", "'ab' 2"})),
            "lines 257 and 259: the same token");
}

TEST(WorldTokenizerTest, TakesTheLongestTokenAtEachPlace) {
  const auto tokenizer = Load(Vocabulary({"'ab' 2", "'abcd' 4", "'bc' 2", "'cde' 3"}), 261);
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->eos_id(), 0);
  EXPECT_EQ(tokenizer->TokenBytes(0), "");
  EXPECT_THAT(*tokenizer->Encode(""), ElementsAre());
  EXPECT_THAT(*tokenizer->Encode("abcde"), ElementsAre(258, 'e' + 1));
  EXPECT_THAT(*tokenizer->Encode("abcab"), ElementsAre(257, 'c' + 1, 257));
  EXPECT_THAT(*tokenizer->Encode("bcdeabc"), ElementsAre(259, 'd' + 1, 'e' + 1, 257, 'c' + 1));
  EXPECT_THAT(*tokenizer->Encode(absl::string_view("\xFF\0a", 3)), ElementsAre(256, 1, 'a' + 1));
}

TEST(WorldTokenizerTest, EveryByteMustBeAToken) {
  EXPECT_THAT(Refusal("1 'ab' 2\n"), StartsWith("has no token for the byte 0x00"));
  std::string vocabulary = Vocabulary({"'ab' 2"});
  vocabulary.replace(vocabulary.find("b'\\x61' 1"), 9, "b'ac' 2");
  EXPECT_THAT(Refusal(vocabulary), StartsWith("has no token for the byte 0x61"));
}

TEST(WorldTokenizerTest, TheShippedOneEqualsThePackage) {
  const Json goldens = Json::parse(std::ifstream("tests/parity/goldens/world.json"));
  const auto tokenizer = Load(std::string(ShippedWorldVocabulary()));
  ASSERT_EQ(tokenizer->vocab_size(), kShippedTokens + 1);
  Fnv tokens, texts, pairs, damaged;
  for (int32_t i = 0; i < kShippedTokens; ++i) {
    const absl::string_view token = tokenizer->TokenBytes(i + 1);
    tokens.Add(static_cast<uint64_t>(i + 1));
    for (const char byte : token) tokens.Add(static_cast<unsigned char>(byte));
    ASSERT_THAT(*tokenizer->Encode(token), ElementsAre(i + 1));
    const auto second = static_cast<int32_t>(int64_t{i} * 7919 % kShippedTokens);
    std::string text = absl::StrCat(token, tokenizer->TokenBytes(second + 1));
    pairs.Add(*tokenizer->Encode(text));
    text[text.size() / 2] = static_cast<char>(i);
    damaged.Add(*tokenizer->Encode(text.substr(1)));
  }
  for (const char* name : {"samples.json", "hostile.json"}) {
    std::ifstream file(absl::StrCat("tests/unit/model/data/bpe/", name));
    for (const Json& sample : Json::parse(file)) {
      texts.Add(*tokenizer->Encode(sample["text"].get<std::string>()));
    }
  }
  EXPECT_EQ(tokens.Hex(), goldens["tokens"]);
  EXPECT_EQ(texts.Hex(), goldens["texts"]);
  EXPECT_EQ(pairs.Hex(), goldens["pairs"]);
  EXPECT_EQ(damaged.Hex(), goldens["damaged"]);
}

}  // namespace
}  // namespace aft
