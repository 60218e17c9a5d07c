#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::shared_ptr<const Tokenizer> Make(std::vector<std::string> characters) {
  auto tokenizer = MakeCharTokenizer(std::move(characters));
  AFT_CHECK(tokenizer.ok());
  return *tokenizer;
}

std::string Refusal(const Tokenizer& tokenizer, absl::string_view text) {
  const auto ids = tokenizer.Encode(text);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(ids.status().message());
}

TEST(CharTokenizerTest, OneTokenPerCharacter) {
  const auto tokenizer = Make({"a", "\n", "é", "中", "😀"});
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->eos_id(), -1);
  EXPECT_THAT(*tokenizer->Encode("中a😀\né"), ElementsAre(3, 0, 4, 1, 2));
  EXPECT_THAT(*tokenizer->Encode(""), ElementsAre());
  EXPECT_EQ(tokenizer->TokenBytes(4), "😀");
}

TEST(CharTokenizerTest, NamesTheCharacterThatItDoesNotKnowAndItsPlace) {
  const auto tokenizer = Make({"a", "é"});
  EXPECT_EQ(Refusal(*tokenizer, "aéb"),
            "character 'b' (U+0062) at byte 3 is not in the model's vocabulary");
  EXPECT_EQ(Refusal(*tokenizer, "a中"),
            "character '中' (U+4E2D) at byte 1 is not in the model's vocabulary");
  EXPECT_THAT(Refusal(*tokenizer, absl::string_view("\0", 1)),
              StartsWith("character '\\x00' (U+0000)"));
  EXPECT_THAT(Refusal(*tokenizer, "aa\xC3"), StartsWith("byte 0xC3 at byte 2 is not valid UTF-8"));
}

TEST(CharTokenizerTest, AVocabularyWithAnUnknownTokenEncodesAnything) {
  const auto tokenizer = Make({"a", "<unk>", "b"});
  EXPECT_THAT(*tokenizer->Encode("abc中\xFFz"), ElementsAre(0, 2, 1, 1, 1, 1));
  EXPECT_EQ(tokenizer->TokenBytes(1), "");
}

TEST(CharTokenizerTest, RefusesEntriesThatAreNotOneCharacter) {
  for (const std::string entry : {"", "ab", "éé", "\xC3", "<pad>"}) {
    EXPECT_THAT(
        MakeCharTokenizer({"a", entry}),
        StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("token 1: must be one character")));
  }
  EXPECT_THAT(std::string(MakeCharTokenizer({"a", "a"}).status().message()),
              HasSubstr("token 1: 'a' given more than once"));
  EXPECT_FALSE(MakeCharTokenizer({"<unk>", "<unk>"}).ok());
}

TEST(Utf8CharacterTest, AcceptsExactlyTheValidCharacters) {
  for (char32_t point = 0; point <= 0x10FFFF; ++point) {
    if (point == 0xD800) point = 0xE000;
    const std::string text = EncodeUtf8(point) + "\x80";
    const Utf8Character character = FirstCharacter(text);
    ASSERT_EQ(character.point, point);
    ASSERT_EQ(character.size, text.size() - 1) << std::hex << static_cast<uint32_t>(point);
    // A character that is cut short is not valid.
    const absl::string_view cut = absl::string_view(text).substr(0, text.size() - 2);
    if (cut.empty()) continue;
    ASSERT_EQ(FirstCharacter(cut).size, 0U);
  }
  for (const std::string invalid :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
        "\xE4\xB8\x41", "\xC3\xC3"}) {
    EXPECT_EQ(FirstCharacter(invalid).size, 0U) << testing::PrintToString(invalid);
  }
}

TEST(LoadTokenizerTest, LoadsEachKind) {
  TempFolder folder;
  EXPECT_EQ((*LoadTokenizer("bytes", folder.path(), 256))->vocab_size(), 256);
  WriteBytes(folder.File(kCharsFileName), R"(["a", "\u00e9", "\ud83d\ude00"])");
  const auto chars = LoadTokenizer("chars", folder.path(), 3);
  ASSERT_TRUE(chars.ok()) << chars.status();
  EXPECT_THAT(*(*chars)->Encode("😀éa"), ElementsAre(2, 1, 0));
  const auto bpe = LoadTokenizer("bpe", "tests/unit/model/data/bpe", 700);
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_EQ((*bpe)->vocab_size(), 658);
}

TEST(LoadTokenizerTest, NamesWhatIsWrong) {
  TempFolder folder;
  const auto message = [&](const char* kind, int64_t vocab_size) {
    return std::string(LoadTokenizer(kind, folder.path(), vocab_size).status().message());
  };
  EXPECT_THAT(message("words", 9), HasSubstr("tokenizer.kind"));
  EXPECT_EQ(LoadTokenizer("chars", folder.path(), 9).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message("chars", 9), StartsWith("cannot read " + folder.File(kCharsFileName)));
  for (const auto& [text, reason] : std::vector<std::pair<std::string, std::string>>{
           {"[\"a\", \"bc\"]", "token 1: must be one character, got 'bc'"},
           {"[\"a\", 7]", "token 1: must be a string, got 7"},
           {"[\"a\", [\"b\"]]", "token 1: must be a string, got an array"},
           {"[\"a\", \"a\"]", "'a': given more than once"},
           {"{\"a\": 0}", "must be an array of strings, got an object"},
           {"[]", "has no tokens"},
           {"[\"\xFF\"]", "not valid JSON at byte"},
           {"[\"a\xFF\"]", "a\xEF\xBF\xBD"},
           {"[\"" + std::string(1000, 'x'), "xxx..."},
           {"[\"a\"] x", "not valid JSON at byte"}}) {
    WriteBytes(folder.File(kCharsFileName), text);
    EXPECT_THAT(message("chars", 9), StartsWith(folder.File(kCharsFileName) + ": ")) << text;
    EXPECT_THAT(message("chars", 9), HasSubstr(reason)) << text;
  }
  WriteBytes(folder.File(kCharsFileName), R"(["a", "b", "c"])");
  EXPECT_TRUE(LoadTokenizer("chars", folder.path(), 3).ok());
  EXPECT_THAT(message("chars", 2), HasSubstr("3 tokens, more than the network's vocab_size, 2"));
}

}  // namespace
}  // namespace aft
