#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::StartsWith;

// Made by Hugging Face's tokenizers: tests/unit/model/data/bpe/make_goldens.py.
constexpr char kVocab[] = "tests/unit/model/data/bpe/vocab.json";
constexpr char kMerges[] = "tests/unit/model/data/bpe/merges.txt";
constexpr char kSamples[] = "tests/unit/model/data/bpe/samples.json";

std::shared_ptr<const Tokenizer> Golden() {
  auto tokenizer = LoadBpeTokenizer(kVocab, kMerges);
  AFT_CHECK(tokenizer.ok());
  return *tokenizer;
}

std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += std::string(tokenizer.TokenBytes(id));
  return text;
}

TEST(BpeTokenizerTest, EncodesAsHuggingFacesTokenizersDoes) {
  const auto tokenizer = Golden();
  const Json samples = Json::parse(ReadBytes(kSamples));
  ASSERT_GT(samples.size(), 200U);
  for (const Json& sample : samples) {
    const std::string text = sample["text"];
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_THAT(*ids, ElementsAreArray(sample["ids"].get<std::vector<int32_t>>())) << sample;
    EXPECT_EQ(Decode(*tokenizer, *ids), text);
  }
}

TEST(BpeTokenizerTest, EndOfTextIsItsIdAndNotItsSpelling) {
  const auto tokenizer = Golden();
  EXPECT_EQ(tokenizer->vocab_size(), 658);
  EXPECT_EQ(tokenizer->eos_id(), 657);
  EXPECT_EQ(tokenizer->TokenBytes(657), "");
  const std::vector<int32_t> ids = *tokenizer->Encode(kEndOfText);
  EXPECT_THAT(ids, testing::Not(testing::Contains(657)));
  EXPECT_EQ(Decode(*tokenizer, ids), kEndOfText);
}

TEST(BpeTokenizerTest, AnyBytesRoundTrip) {
  const auto tokenizer = Golden();
  const uint32_t seed = 3;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const size_t length : {1U, 2U, 3U, 50U, 5000U}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string text(length, '\0');
      for (char& c : text) c = static_cast<char>(random() & 0xFF);
      EXPECT_EQ(Decode(*tokenizer, *tokenizer->Encode(text)), text);
    }
  }
}

TEST(BpeTokenizerTest, CharactersCutShortDoNotDisturbTheirNeighbours) {
  const auto tokenizer = Golden();
  const std::vector<int32_t> the = *tokenizer->Encode(" the");
  for (const std::string broken : {"\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xED\xA0\x80", "\xFF",
                                   "\xC0\x80", "\xF5\x80\x80\x80", "\x80"}) {
    std::vector<int32_t> expected = *tokenizer->Encode(broken);
    EXPECT_EQ(Decode(*tokenizer, expected), broken);
    expected.insert(expected.begin(), the.begin(), the.end());
    expected.insert(expected.end(), the.begin(), the.end());
    EXPECT_THAT(*tokenizer->Encode(" the" + broken + " the"), ElementsAreArray(expected));
  }
}

// A quadratic merge would need half an hour, which is more than the time limit of the test.
TEST(BpeTokenizerTest, AMegabyteOfOneCharacterIsNotQuadratic) {
  const auto tokenizer = Golden();
  for (const char* unit : {"a", " ", ".", "\xC3\xA9", "\xFF", "' ", " \t", "e "}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    EXPECT_EQ(Decode(*tokenizer, *tokenizer->Encode(text)), text) << unit;
  }
}

// A vocabulary of the 256 bytes and the tokens that Add adds, in files of their own.
class BpeFilesTest : public testing::Test {
 protected:
  BpeFilesTest() {
    const Json golden = Json::parse(ReadBytes(kVocab));
    for (const auto& [token, id] : golden.items()) {
      if (id < 256) vocab_[token] = id;
    }
    AFT_CHECK(vocab_.size() == 256);
  }
  void Add(const std::string& token) { vocab_[token] = vocab_.size(); }
  absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& merges) {
    return LoadRaw(vocab_.dump(), merges);
  }
  absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadRaw(const std::string& vocab,
                                                           const std::string& merges) {
    WriteBytes(folder_.File("vocab.json"), vocab);
    WriteBytes(folder_.File("merges.txt"), merges);
    return LoadBpeTokenizer(folder_.File("vocab.json"), folder_.File("merges.txt"));
  }
  void ExpectRefused(const absl::Status& status, const std::string& file,
                     const std::string& reason) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(StartsWith(folder_.path() + (file.empty() ? "" : "/" + file)), HasSubstr(reason)));
  }

  TempFolder folder_;
  Json vocab_;
};

TEST_F(BpeFilesTest, TheRankDecidesAndThenTheLeftmostPair) {
  Add("bc");   // 256
  Add("ab");   // 257
  Add("aa");   // 258
  Add("abc");  // 259
  const auto tokenizer = Load("#version: 0.2\nb c\na b\na a\na bc\n");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const int32_t a = vocab_["a"];
  EXPECT_THAT(*(*tokenizer)->Encode("abc"), testing::ElementsAre(259));
  EXPECT_THAT(*(*tokenizer)->Encode("abab"), testing::ElementsAre(257, 257));
  EXPECT_THAT(*(*tokenizer)->Encode("aaa"), testing::ElementsAre(258, a));
  EXPECT_EQ((*tokenizer)->eos_id(), -1);
}

TEST_F(BpeFilesTest, AcceptsWindowsLineEndsAndNoVersionLine) {
  Add("ab");
  const auto tokenizer = Load("a b\r\n");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("ab"), testing::ElementsAre(256));
}

TEST_F(BpeFilesTest, RefusesMergesByLine) {
  Add("ab");
  Add(kEndOfText);
  const auto refused = [this](const std::string& merges, const std::string& where,
                              const std::string& reason) {
    const auto loaded = Load(merges);
    ASSERT_FALSE(loaded.ok()) << merges;
    ExpectRefused(loaded.status(), "merges.txt" + where, reason);
  };
  refused("#version: 0.2\na b\nab\n", ":3: ", "must be two tokens with a space between, got 'ab'");
  refused("a b\n#version: 0.2\n", ":2: ", "token '#version:' is not in the vocabulary");
  refused("a b\n\na b\n", ":2: ", "must be two tokens");
  refused("a b c\n", ":1: ", "must be two tokens");
  refused(" b\n", ":1: ", "must be two tokens");
  refused("a \n", ":1: ", "must be two tokens");
  refused("a b\na b\n", ":2: ", "duplicate");
  refused("a b\nb a\n", ":2: ", "token 'ba' is not in the vocabulary");
  refused("zz b\n", ":1: ", "token 'zz' is not in the vocabulary");
  refused("<|endoftext|> b\n", ":1: ", "token '<|endoftext|>' must not be");
  refused(std::string("a\0b\n", 4), ":1: ", "must be two tokens");
}

TEST_F(BpeFilesTest, RefusesVocabulariesByToken) {
  const auto refused = [this](const std::string& vocab, const std::string& reason) {
    const auto loaded = LoadRaw(vocab, "");
    ASSERT_FALSE(loaded.ok()) << vocab;
    ExpectRefused(loaded.status(), "vocab.json: ", reason);
  };
  const auto with = [this](const std::string& token, const Json& id) {
    Json vocab = vocab_;
    vocab[token] = id;
    return vocab.dump();
  };
  Json without = vocab_;
  without.erase("A");
  without["xyz"] = vocab_["A"];
  refused(without.dump(), "no token for byte 0x41, 'A'");
  refused(with("ab", 257), "token 'ab': id 257 is not below 257");
  refused(with("ab", 12), "id 12 is also that of");
  refused(with("ab", -1), "token 'ab': must be an id, got -1");
  refused(with("ab", 1.5), "must be an id, got 1.5");
  refused(with("ab", "x"), "must be an id, got \"x\"");
  refused(with("ab", nullptr), "must be an id, got null");
  refused(with("ab", Json::array({1})), "must be an id, got an array");
  refused(with("ab", 18446744073709551615ULL), "is not below 257");
  refused(with("a b", 256), "U+0020 spells no byte");
  refused(with("\u4e2d", 256), "U+4E2D spells no byte");
  refused("[\"a\"]", "must be an object of ids, got an array");
  refused("{}", "has no tokens");
  refused("{\"a\": 0, \"a\": 1}", "'a': given more than once");
  refused("{\"a\": 0", "not valid JSON at byte");
  refused(std::string("{\"a\": 0}\0", 9), "NUL at byte 8");
  refused("", "not valid JSON");
  refused("7", "must be an object of ids, got 7");
}

TEST_F(BpeFilesTest, DamagedFilesAreRefusedOrHarmless) {
  const uint32_t seed = 11;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string vocab = ReadBytes(kVocab);
  const std::string merges = ReadBytes(kMerges);
  int refused = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::string damaged[] = {vocab, merges};
    std::string& file = damaged[repeat % 2];
    const size_t at = random() % file.size();
    if (random() % 4 == 0) {
      file.resize(at);
    } else {
      file[at] = static_cast<char>(random() & 0xFF);
    }
    const auto tokenizer = LoadRaw(damaged[0], damaged[1]);
    if (!tokenizer.ok()) {
      EXPECT_THAT(std::string(tokenizer.status().message()), StartsWith(folder_.path()));
      ++refused;
      continue;
    }
    const std::string text = "It was the best of times, naïve \xFF\n  ";
    EXPECT_EQ((*tokenizer)->Encode(text)->empty(), false);
  }
  EXPECT_GT(refused, 100);
}

TEST_F(BpeFilesTest, TheConfigMayNameTheTokenThatEndsAText) {
  Add("</s>");
  Add("ab");
  ASSERT_TRUE(Load("a b\n").ok());
  const std::string config = folder_.File("tokenizer_config.json");
  const auto with_end = [&](const std::string& token) {
    WriteBytes(config, Json{{"eos_token", token}}.dump());
    return LoadTokenizer("bpe", folder_.path(), 300);
  };
  const auto tokenizer = with_end("</s>");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), 256);
  EXPECT_EQ((*tokenizer)->TokenBytes(256), "");
  EXPECT_EQ((*tokenizer)->Encode("</s>")->size(), 4U);
  const std::string named = config + ": eos_token names";
  ExpectRefused(with_end("ab").status(), "merges.txt:1: token 'ab' must not be", "; " + named);
  ExpectRefused(with_end("a").status(), "vocab.json: token 'a': is the token of", "; " + named);
  ExpectRefused(with_end("<s>").status(), "vocab.json: has no token '<s>', which ", named);
}

TEST_F(BpeFilesTest, SaysWhichFileIsMissing) {
  const absl::Status status =
      LoadBpeTokenizer(folder_.File("vocab.json"), folder_.File("merges.txt")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              StartsWith("cannot read " + folder_.File("vocab.json")));
  const absl::Status merges = LoadBpeTokenizer(kVocab, folder_.File("merges.txt")).status();
  EXPECT_EQ(merges.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(merges.message()),
              StartsWith("cannot read " + folder_.File("merges.txt")));
  ExpectRefused(LoadBpeTokenizer(kVocab, folder_.path()).status(), "", "not a regular file");
}

}  // namespace
}  // namespace aft
