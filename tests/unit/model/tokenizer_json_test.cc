// tokenizer.json of Hugging Face's tokenizers: its encodings, and every field that is refused.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::StartsWith;

// Made by Hugging Face's tokenizers: tests/unit/model/data/bpe/make_goldens.py.
constexpr char kFolder[] = "tests/unit/model/data/bpe/";

std::string DecodeIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += std::string(tokenizer.TokenBytes(id));
  return text;
}

// FNV-1a over the numbers, as in make_goldens.py.
std::string Checksum(const std::vector<int32_t>& ids) {
  uint64_t value = 0xCBF29CE484222325;
  for (const int32_t id : ids) value = (value ^ static_cast<uint64_t>(id)) * 0x100000001B3;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

class TokenizerJsonTest : public testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadRaw(const std::string& text) {
    WriteBytes(path_, text);
    return LoadTokenizerJson(path_, config_path_);
  }
  absl::StatusOr<std::shared_ptr<const Tokenizer>> Load() { return LoadRaw(json_.dump()); }
  std::shared_ptr<const Tokenizer> Loaded() {
    auto tokenizer = Load();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *tokenizer;
  }
  void ExpectRefused(const absl::StatusOr<std::shared_ptr<const Tokenizer>>& loaded,
                     const std::string& problem) {
    ASSERT_FALSE(loaded.ok()) << problem;
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument) << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()),
                AllOf(StartsWith(path_ + ": "), HasSubstr(problem)));
  }
  // Expects that the file is refused if `value` is at this place.
  void ExpectRefusedWith(const std::string& pointer, const Json& value,
                         const std::string& problem) {
    Json damaged = json_;
    damaged[Json::json_pointer(pointer)] = value;
    ExpectRefused(LoadRaw(damaged.dump()), problem);
  }

  const TempFolder folder_;
  const std::string path_ = folder_.File("tokenizer.json");
  const std::string config_path_ = folder_.File("tokenizer_config.json");
  Json json_ = Json::parse(ReadBytes(std::string(kFolder) + "added/tokenizer.json"));
};

TEST_F(TokenizerJsonTest, EncodesHostileTextsAsHuggingFacesTokenizersDoes) {
  const auto tokenizer = Loaded();
  EXPECT_EQ(tokenizer->vocab_size(), 667);
  int special = 0;
  for (const Json& sample : Json::parse(ReadBytes(std::string(kFolder) + "hostile.json"))) {
    std::string text;
    for (int i = 0; i < sample["repeat"]; ++i) text += sample["text"].get<std::string>();
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(DecodeIds(*tokenizer, *ids), text) << sample["text"];
    if (sample.contains("ids")) {
      EXPECT_THAT(*ids, ElementsAreArray(sample["ids"].get<std::vector<int32_t>>())) << sample;
      special += text.find(kEndOfText) != std::string::npos;
    } else {
      EXPECT_EQ(ids->size(), sample["count"]) << sample;
      EXPECT_EQ(Checksum(*ids), sample["checksum"]) << sample;
    }
  }
  EXPECT_GT(special, 20);
}

// Compares it with vocab.json and merges.txt, in either spelling of the merges.
TEST_F(TokenizerJsonTest, AgreesWithTheTokenizerOfTheTwoFiles) {
  json_["added_tokens"] = Json::array({json_["added_tokens"][1]});
  ASSERT_EQ(json_["added_tokens"][0]["content"], kEndOfText);
  const auto of_two =
      LoadBpeTokenizer(std::string(kFolder) + "vocab.json", std::string(kFolder) + "merges.txt");
  ASSERT_TRUE(of_two.ok()) << of_two.status();
  for (const bool pairs : {true, false}) {
    if (!pairs) {
      for (Json& merge : json_["model"]["merges"]) {
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
      }
    }
    const auto of_one = Loaded();
    EXPECT_EQ(of_one->vocab_size(), (*of_two)->vocab_size());
    EXPECT_EQ(of_one->eos_id(), (*of_two)->eos_id());
    for (const Json& sample : Json::parse(ReadBytes(std::string(kFolder) + "hostile.json"))) {
      const std::string text = sample["text"];
      EXPECT_EQ(*of_one->Encode(text), *(*of_two)->Encode(text));
    }
    for (int32_t id = 0; id < of_one->vocab_size(); ++id) {
      EXPECT_EQ(of_one->TokenBytes(id), (*of_two)->TokenBytes(id));
    }
  }
}

// Every code point has the class that tokenizers gives it. A letter joins the piece of an "a"
// before it, a digit that of a "1", another sign that of a "!", and white space joins none.
TEST_F(TokenizerJsonTest, ClassifiesEveryCodePointAsHuggingFacesTokenizersDoes) {
  Json& vocabulary = json_["model"]["vocab"];
  Json merges = Json::array();
  for (auto token = vocabulary.begin(); token != vocabulary.end();) {
    token = token.value() >= 256 ? vocabulary.erase(token) : std::next(token);
  }
  const Json bytes = vocabulary;
  for (const std::string before : {"a", "1", "!"}) {
    for (const auto& [byte, id] : bytes.items()) {
      vocabulary[before + byte] = vocabulary.size();
      merges.push_back({before, byte});
    }
  }
  json_["model"]["merges"] = merges;
  json_["added_tokens"] = Json::array();
  const auto tokenizer = Loaded();
  const Json runs = Json::parse(ReadBytes(std::string(kFolder) + "classes.json"));
  ASSERT_GT(runs.size(), 1000U);
  std::string differences;
  int count = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    const std::string expected = runs[run][1];
    const char32_t end = run + 1 < runs.size() ? runs[run + 1][0].get<char32_t>() : 0x110000;
    for (char32_t point = runs[run][0].get<char32_t>(); point < end && expected != "-"; ++point) {
      const std::string character = EncodeUtf8(point);
      const auto joins = [&](const std::string& before) {
        return (*tokenizer->Encode(before + character))[0] != vocabulary[before].get<int32_t>();
      };
      const std::string kind = joins("a") ? "L" : joins("1") ? "N" : joins("!") ? "O" : "S";
      if (kind == expected) continue;
      if (++count <= 20) differences += testing::PrintToString(point) + kind + expected + " ";
    }
  }
  EXPECT_EQ(count, 0) << differences;
}

TEST_F(TokenizerJsonTest, SpecialTokensAreIdsAndNotTheirSpelling) {
  const auto tokenizer = Loaded();
  EXPECT_EQ(tokenizer->eos_id(), 657);
  for (const int32_t id : {657, 658, 659}) EXPECT_EQ(tokenizer->TokenBytes(id), "");
  EXPECT_EQ(tokenizer->TokenBytes(660), "<tool>");
  const auto ids = *tokenizer->Encode("<|endoftext|><|user|><mask><tool>");
  EXPECT_THAT(ids,
              testing::Not(testing::Contains(testing::AllOf(testing::Ge(657), testing::Lt(660)))));
  EXPECT_EQ(ids.back(), 660);
  EXPECT_EQ(tokenizer->SpecialTokenIn("a<|user|>\n"), "<|user|>");
  EXPECT_EQ(tokenizer->SpecialTokenIn("a<|user<tool>"), "");
}

// The ids are those of tokenizers 0.23.3.
TEST_F(TokenizerJsonTest, FindsNoAddedTokenOfTheSameClassWithinASpecialToken) {
  Json token = json_["added_tokens"][0];
  int32_t next_id = 667;
  for (const auto& [content, special, normalized] :
       {std::tuple("<|zq|>", true, false), std::tuple("zq", false, false),
        std::tuple("zq|>x", false, true)}) {
    token["id"] = next_id++;
    token["content"] = content;
    token["special"] = special;
    token["normalized"] = normalized;
    json_["added_tokens"].push_back(token);
  }
  for (const std::string eos : {"<|endoftext|>", "<|zq|>"}) {
    WriteBytes(config_path_, Json{{"eos_token", eos}}.dump());
    const auto tokenizer = Loaded();
    EXPECT_THAT(*tokenizer->Encode("<|zq|>"), ElementsAre(27, 91, 89, 80, 91, 29)) << eos;
    EXPECT_THAT(*tokenizer->Encode("zq<|zq|>x"), ElementsAre(668, 27, 91, 669)) << eos;
    EXPECT_THAT(*tokenizer->Encode("a<|zq|"), ElementsAre(64, 27, 91, 668, 91)) << eos;
  }
}

TEST_F(TokenizerJsonTest, AddedTokensAreFoundBetweenBytesThatAreNotText) {
  const auto tokenizer = Loaded();
  const std::string text = "\xFF<tool>\xE4\xB8<tool>\x80";
  const auto ids = *tokenizer->Encode(text);
  EXPECT_EQ(DecodeIds(*tokenizer, ids), text);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 660), 2);
}

// Like tokenizers, it first looks in the whole text for those that are not "normalized".
TEST_F(TokenizerJsonTest, SomeAddedTokensAreLookedForBeforeTheOthers) {
  Json token = json_["added_tokens"][0];
  for (const auto& [content, normalized] : {std::pair("zq", true), std::pair("qv", false)}) {
    token["id"] = 667 + static_cast<int>(!normalized);
    token["content"] = content;
    token["normalized"] = normalized;
    json_["added_tokens"].push_back(token);
  }
  const auto tokenizer = Loaded();
  const int32_t z = json_["model"]["vocab"]["z"];
  EXPECT_THAT(*tokenizer->Encode("zqv"), ElementsAre(z, 668));
  EXPECT_THAT(*tokenizer->Encode("zqzqv"), ElementsAre(667, z, 668));
}

// U+11A7 is before the first of the characters that a syllable composes with.
TEST(NfcTest, KeepsTheCharacterBeforeTheFinalConsonants) {
  EXPECT_EQ(ToNfc("\uac00\u11a7"), "\uac00\u11a7");
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a7"), "\uac00\u11a7");
  EXPECT_EQ(ToNfc("\uac00\u11a7\u11a8"), "\uac00\u11a7\u11a8");
  EXPECT_EQ(ToNfc("\u11a7\u11a7\u1100\u1161\u11a8"), "\u11a7\u11a7\uac01");
}

TEST_F(TokenizerJsonTest, NormalizesTextsAsHuggingFacesTokenizersDoes) {
  json_["normalizer"] = {{"type", "NFC"}};
  for (Json& token : json_["added_tokens"]) {
    if (!token["special"]) token["normalized"] = true;
  }
  const auto tokenizer = Loaded();
  int changed = 0;
  for (const Json& sample : Json::parse(ReadBytes(std::string(kFolder) + "nfc.json"))) {
    const std::string text = sample["text"];
    const auto ids = *tokenizer->Encode(text);
    EXPECT_THAT(ids, ElementsAreArray(sample["ids"].get<std::vector<int32_t>>())) << sample;
    changed += DecodeIds(*tokenizer, ids) != text;
  }
  EXPECT_GT(changed, 100);
  const std::string no_text = "e\u0301\xFF";
  EXPECT_EQ(DecodeIds(*tokenizer, *tokenizer->Encode(no_text)), no_text);
  // A sort of these marks in quadratic time would take hours.
  std::string marks = "e";
  for (int i = 0; i < 500000; ++i) marks += "\u0301\u0323";
  EXPECT_EQ(DecodeIds(*tokenizer, *tokenizer->Encode(marks)).size(), marks.size());
  json_["added_tokens"][4]["content"] = "e\u0301";
  ExpectRefused(Load(), "must be normalized, in form NFC");
}

// As in GPT-NeoX's vocabulary.
TEST_F(TokenizerJsonTest, BytesThatUtf8DoesNotHaveNeedNoToken) {
  Json& vocabulary = json_["model"]["vocab"];
  // These spell the bytes 0xC0, 0xC1, 0xF5 and 0xFF.
  for (const std::string spelling : {"\u00c0", "\u00c1", "\u00f5", "\u00ff"}) {
    vocabulary["xyz" + spelling] = vocabulary.at(spelling);
    vocabulary.erase(spelling);
  }
  const auto tokenizer = Loaded();
  EXPECT_THAT(*tokenizer->Encode("\xFE"), ElementsAre(vocabulary["\u00fe"].get<int32_t>()));
  EXPECT_THAT(tokenizer->Encode("a\xFF").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("byte 0xFF")));
}

TEST_F(TokenizerJsonTest, TheConfigNamesTheEndOfText) {
  const auto eos = [this](const std::string& config) {
    WriteBytes(config_path_, config);
    return Load();
  };
  EXPECT_EQ((*eos(R"({"eos_token": "<|user|>", "model_max_length": 1e30})"))->eos_id(), 658);
  EXPECT_EQ((*eos(R"({"eos_token": {"content": "<|user|>", "lstrip": false}})"))->eos_id(), 658);
  EXPECT_EQ((*eos(R"({"eos_token": null})"))->eos_id(), 657);
  EXPECT_EQ((*eos("{}"))->eos_id(), 657);
  // It becomes a special token.
  const auto tool = *eos(R"({"eos_token": "<tool>"})");
  EXPECT_EQ(tool->eos_id(), 660);
  EXPECT_EQ(tool->TokenBytes(660), "");
  EXPECT_THAT(*tool->Encode("<tool>"), testing::Not(testing::Contains(660)));
  ExpectRefused(eos(R"({"eos_token": "</s>"})"), "has no token '</s>', which " + config_path_ +
                                                     ": eos_token names as the end of text");
  EXPECT_THAT(std::string(eos(R"({"eos_token": 7})").status().message()),
              HasSubstr("tokenizer_config.json: eos_token: must be a token, got 7"));
  EXPECT_THAT(std::string(eos(R"({"eos_token": "a", "eos_token": "b"})").status().message()),
              HasSubstr("eos_token: given more than once"));
  EXPECT_FALSE(eos("{").ok());
  json_["added_tokens"][1]["special"] = false;
  EXPECT_EQ((*eos("{}"))->eos_id(), -1);
}

TEST_F(TokenizerJsonTest, RefusesWhatItDoesNotImplementByField) {
  ExpectRefusedWith("/version", "2.0", R"(version: must be null or "1.0", got "2.0")");
  ExpectRefusedWith("/normalizer", "NFC", "normalizer: must be null or an object, got");
  ExpectRefusedWith("/normalizer", {{"type", "Lowercase"}}, "normalizer.type: must be ");
  ExpectRefusedWith("/normalizer", {{"type", "NFC"}, {"later", 1}}, "normalizer.later: is not");
  ExpectRefusedWith("/normalizer", {{"type", "NFC"}}, "token '<tool>': must be normalized");
  ExpectRefusedWith("/pre_tokenizer", nullptr, "pre_tokenizer: must be an object, got null");
  ExpectRefusedWith("/pre_tokenizer/type", "Whitespace", "pre_tokenizer.type: must be ");
  ExpectRefusedWith("/pre_tokenizer/add_prefix_space", true,
                    "pre_tokenizer.add_prefix_space: must be false, got true");
  ExpectRefusedWith("/pre_tokenizer/use_regex", false, "pre_tokenizer.use_regex: must be ");
  ExpectRefusedWith("/pre_tokenizer/later", 1, "pre_tokenizer.later: is not known");
  ExpectRefusedWith("/post_processor/type", "BertProcessing", "post_processor.type: must be ");
  ExpectRefusedWith("/post_processor/single", {{{"SpecialToken", {{"id", "<s>"}}}}},
                    "post_processor.single.0.SpecialToken: a token that is added");
  ExpectRefusedWith("/decoder/type", "WordPiece", "decoder.type: must be ");
  ExpectRefusedWith("/decoder", nullptr, "decoder: must be an object");
  ExpectRefusedWith("/model/type", "Unigram", "model.type: must be ");
  ExpectRefusedWith("/model/dropout", 0.1, "model.dropout: must be ");
  ExpectRefusedWith("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix: ");
  ExpectRefusedWith("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix: ");
  ExpectRefusedWith("/model/ignore_merges", true, "model.ignore_merges: must be ");
  ExpectRefusedWith("/model/later", true, "model.later: is not known");
  ExpectRefusedWith("/model/vocab", Json::array(), "model.vocab: must be an object");
  ExpectRefusedWith("/model/merges", Json::object(), "model.merges: must be an array");
  for (const char* pointer : {"/model/dropout", "/model/unk_token", "/truncation", "/padding"}) {
    json_[Json::json_pointer(pointer)] = 0;  // makes no difference
  }
  json_["model"].erase("type");  // as in the first files of GPT-2
  EXPECT_TRUE(Load().ok()) << Load().status();
}

TEST_F(TokenizerJsonTest, AcceptsATemplateOfTheTextAlone) {
  json_["post_processor"] = {{"type", "TemplateProcessing"},
                             {"single", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                             {"special_tokens", Json::object()}};
  EXPECT_TRUE(Load().ok()) << Load().status();
  json_["post_processor"] = nullptr;
  EXPECT_TRUE(Load().ok()) << Load().status();
}

TEST_F(TokenizerJsonTest, RefusesTokensByName) {
  ExpectRefusedWith("/model/vocab/ab", 12, "model.vocab: token 'ab': id 12 is also that of");
  ExpectRefusedWith("/model/vocab/ab", 668, "token 'ab': id 668 is not below 667");
  ExpectRefusedWith("/model/vocab/ab", -1, "model.vocab: token 'ab': must be an id, got -1");
  ExpectRefusedWith("/model/vocab/ab", 1.5, "token 'ab': must be an id, got 1.5");
  ExpectRefusedWith("/model/vocab/ab", Json::array({1}), "must be an id, got an array");
  ExpectRefusedWith("/model/vocab/a b", 667, "model.vocab: token 'a b': U+0020 spells no byte");
  ExpectRefusedWith("/added_tokens", 7, "added_tokens: must be an array, got 7");
  ExpectRefusedWith("/added_tokens/0", 7, "added_tokens.0.id: must be an id, got null");
  ExpectRefusedWith("/added_tokens/0/id", 429, "token 'the': id 429, but 428 in the vocabulary");
  ExpectRefusedWith("/added_tokens/0/id", 1 << 24, "added_tokens.0.id: must be an id");
  ExpectRefusedWith("/added_tokens/2/content", 1, "added_tokens.2.content: must be a string");
  ExpectRefusedWith("/added_tokens/2/content", "", "added_tokens: a token is empty");
  ExpectRefusedWith("/added_tokens/2/special", nullptr, "added_tokens.2.special: must be true or");
  ExpectRefusedWith("/added_tokens/4/lstrip", true, "added_tokens.4.lstrip: must be false");
  ExpectRefusedWith("/added_tokens/4/rstrip", true, "added_tokens.4.rstrip: must be false");
  ExpectRefusedWith("/added_tokens/4/single_word", true, "added_tokens.4.single_word: must be");
  Json byte = json_["added_tokens"][0];
  byte["content"] = "a";
  byte["id"] = json_["model"]["vocab"]["a"];
  ExpectRefusedWith("/added_tokens/0", byte,
                    "added_tokens: token 'a': is the token of a single byte");
  json_["model"]["vocab"].erase("A");
  json_["model"]["vocab"]["xyz"] = 32;
  ExpectRefused(Load(), "model.vocab: no token for byte 0x41, 'A'");
}

TEST_F(TokenizerJsonTest, RefusesMergesByPlace) {
  ExpectRefusedWith("/model/merges/2", "ab", "model.merges.2: must be two tokens with a space");
  ExpectRefusedWith("/model/merges/2", {"a"}, "model.merges.2: must be two tokens");
  ExpectRefusedWith("/model/merges/2", Json::array(), "model.merges.2: is empty");
  ExpectRefusedWith("/model/merges/2", {"a", "b", "c"}, "model.merges.2.2: a merge must be");
  ExpectRefusedWith("/model/merges/2", {"a", 1}, "model.merges.2.1: a merge must be");
  ExpectRefusedWith("/model/merges/2", {"a", {"b"}}, "model.merges.2.1: a merge must be");
  ExpectRefusedWith("/model/merges/2", 1,
                    "model.merges.2: must be a string or an array of two strings, got 1");
  ExpectRefusedWith("/model/merges/2", {"a", "\u4e2d"}, "model.merges.2: token '\u4e2d' is not");
  ExpectRefusedWith("/model/merges/2", json_["model"]["merges"][1], "model.merges.2: merge ");
  // A special token must be neither a part nor the result of a merge.
  json_["added_tokens"][0]["special"] = true;
  ExpectRefused(Load(), "token 'the' must not be a part or a result of a merge");
}

// As an added token, "\u0120the" stands for these characters. As the result of merges, it would
// stand for " the".
TEST_F(TokenizerJsonTest, RefusesATokenThatWouldStandForTwoTexts) {
  Json added = json_["added_tokens"][0];
  added["content"] = "\u0120the";
  added["id"] = json_["model"]["vocab"]["\u0120the"];
  json_["added_tokens"].push_back(added);
  ExpectRefused(Load(), "\u0120the' must not be a part or a result of a merge");
}

TEST_F(TokenizerJsonTest, RefusesFilesThatAreNoTokenizerJson) {
  ExpectRefused(LoadRaw(""), "not valid JSON at byte");
  ExpectRefused(LoadRaw("{"), "not valid JSON at byte");
  ExpectRefused(LoadRaw("[]"), "must be an object, got an array");
  ExpectRefused(LoadRaw(std::string("{}\0", 3)), "NUL at byte 2");
  ExpectRefused(LoadRaw("{}"), "pre_tokenizer: must be an object, got null");
  ExpectRefused(LoadRaw(std::string(1 << 20, '[')), "must be an object");
  ExpectRefused(LoadRaw("{\"x\":" + std::string(1 << 20, '[')), "more than 16 levels");
  std::string fields = "{\"x\":[0";
  for (int i = 0; i < 1 << 17; ++i) fields += ",0";
  ExpectRefused(LoadRaw(fields + "]}"), "more than 131072 fields");
  ExpectRefused(LoadRaw("{\"x\":{\"" + std::string(1022, 'k') + "\":0}}"),
                "x: has a key or a path of more than 1024 bytes");
  std::string twice = json_.dump();
  twice.pop_back();
  ExpectRefused(LoadRaw(twice + ",\"normalizer\":null}"), "normalizer: given more than once");
  twice.insert(twice.find("\"vocab\":{") + 9, "\"the\":428,");
  ExpectRefused(LoadRaw(twice + "}"), "'the'");
  EXPECT_EQ(LoadTokenizerJson(folder_.File("none"), config_path_).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TokenizerJsonTest, IsUsedInsteadOfTheTwoFiles) {
  ASSERT_TRUE(Load().ok());
  const auto alone = LoadTokenizer("bpe", folder_.path(), 667);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(*(*alone)->Encode("<tool>"), ElementsAre(660));
  WriteBytes(folder_.File("vocab.json"), "no JSON");
  EXPECT_TRUE(LoadTokenizer("bpe", folder_.path(), 667).ok());
  EXPECT_THAT(std::string(LoadTokenizer("bpe", folder_.path(), 666).status().message()),
              HasSubstr("has 667 tokens, more than the network's vocab_size, 666"));
}

}  // namespace
}  // namespace aft
