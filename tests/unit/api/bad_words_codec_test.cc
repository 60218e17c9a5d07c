// Tests how GenerateCodec turns bad words into tokens.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "server/api/aft/generate_codec.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/api/decode.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Encodes a text greedily: each token is the longest piece that fits.
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  int32_t eos_id() const override { return -1; }
  absl::string_view TokenBytes(int32_t id) const override {
    return pieces_[static_cast<size_t>(id)];
  }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      int32_t best = -1;
      for (int32_t id = 0; id < vocab_size(); ++id) {
        if (!absl::StartsWith(text, TokenBytes(id))) continue;
        if (best < 0 || TokenBytes(id).size() > TokenBytes(best).size()) best = id;
      }
      if (best < 0) return absl::InvalidArgumentError("no such character");
      ids.push_back(best);
      text.remove_prefix(TokenBytes(best).size());
    }
    return ids;
  }

 private:
  const std::vector<std::string> pieces_;
};

absl::StatusOr<GenerationRequest> DecodeWords(const std::vector<std::string>& words,
                                              const std::vector<std::string>& pieces) {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(0);
  for (const std::string& word : words) message.mutable_sampling()->add_bad_words(word);
  return Decode<GenerateCodec>(message, {.tokenizer = std::make_shared<PieceTokenizer>(pieces)});
}

const std::vector<std::string>& Pieces() {
  static const auto& pieces =
      *new std::vector<std::string>{"a", "b", "c", " ", "cat", " cat", "dog"};
  return pieces;
}

std::vector<TokenId> Tokens(const std::string& word) {
  const auto request = DecodeWords({word}, Pieces());
  EXPECT_TRUE(request.ok()) << request.status();
  std::vector<TokenId> banned;
  if (!request.ok() || request->sampling.rules == nullptr) return banned;
  EXPECT_EQ(request->bad_words, nullptr);
  for (const LogitRule& rule : request->sampling.rules->rules) {
    EXPECT_EQ(rule.bias, kBannedBias);
    banned.push_back(rule.id);
  }
  return banned;
}

TokenSequences Sequences(const std::vector<std::string>& words) {
  const auto request = DecodeWords(words, Pieces());
  EXPECT_TRUE(request.ok()) << request.status();
  if (!request.ok() || request->bad_words == nullptr) return {};
  EXPECT_EQ(request->sampling.rules, nullptr);
  return *request->bad_words;
}

TEST(BadWordsCodecTest, AWordOfOneTokenIsBannedWithAndWithoutASpaceBeforeIt) {
  EXPECT_THAT(Tokens("cat"), ElementsAre(4, 5));
  EXPECT_THAT(Tokens(" cat"), ElementsAre(5));
  EXPECT_THAT(Tokens("dog"), ElementsAre(6));
  EXPECT_THAT(Tokens(" "), ElementsAre(3));
}

TEST(BadWordsCodecTest, AWordOfSeveralTokensIsASequenceWithAndWithoutASpaceBeforeIt) {
  EXPECT_THAT(Sequences({"ab"}), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(Sequences({" ab"}), ElementsAre(ElementsAre(3, 0, 1)));
  EXPECT_THAT(Sequences({"catb", "dogdog"}),
              ElementsAre(ElementsAre(5, 1), ElementsAre(4, 1), ElementsAre(6, 6)));
}

TEST(BadWordsCodecTest, BadWordsWorkInAVocabularyWithoutASpace) {
  const auto request = DecodeWords({"ab", "c"}, {"a", "b", "c"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(*request->bad_words, ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(request->sampling.rules->rules.size(), 1U);
}

TEST(BadWordsCodecTest, ABannedSpaceDoesNotBanTheTokenOfTwoSpaces) {
  const auto request = DecodeWords({" "}, {"a", " ", "  "});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->sampling.rules->rules.size(), 1U);
  EXPECT_EQ(request->sampling.rules->rules.begin()->id, 1);
}

TEST(BadWordsCodecTest, AWordWithAnUnknownCharacterDoesNotBanTheirToken) {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(0);
  for (const char* word : {"\u00e9", "a\u00e9"}) message.mutable_sampling()->add_bad_words(word);
  const auto request =
      Decode<GenerateCodec>(message, {.tokenizer = *MakeCharTokenizer({kUnknownCharacter, "a"})});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sampling.rules, nullptr);
  EXPECT_EQ(request->bad_words, nullptr);
}

TEST(BadWordsCodecTest, WithoutBadWordsThereAreNoRules) {
  const auto request = DecodeWords({}, Pieces());
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->bad_words, nullptr);
  EXPECT_EQ(request->sampling.rules, nullptr);
}

TEST(BadWordsCodecTest, TheTokensOfBadWordsAreCharged) {
  GenerateCodec codec;
  const auto kept = [&](int words) {
    const auto request =
        DecodeWords(std::vector<std::string>(static_cast<size_t>(words), "ab"), Pieces());
    return codec.kept_tokens(*request);
  };
  EXPECT_EQ(kept(100), kept(0) + 200);
}

TEST(BadWordsCodecTest, ErrorsNameTheEntry) {
  const auto error = [](const std::vector<std::string>& words) {
    return DecodeWords(words, Pieces()).status();
  };
  const auto is = [](const std::string& message) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message));
  };
  EXPECT_EQ(error({std::string(64, 'a')}), absl::OkStatus());
  EXPECT_THAT(error({"a", ""}), is("sampling.bad_words[1]: must have 1 to 256 bytes, got 0"));
  EXPECT_THAT(error({std::string(257, 'a')}),
              is("sampling.bad_words[0]: must have 1 to 256 bytes, got 257"));
  EXPECT_THAT(error({"a", "b", std::string(65, 'a')}),
              is("sampling.bad_words[2]: must have 1 to 64 tokens, got 65"));
  EXPECT_THAT(error({"a", "z"}), is("sampling.bad_words[1]: no such character"));
  EXPECT_THAT(error(std::vector<std::string>(129, "a")),
              is("sampling.bad_words: must have at most 128 entries, got 129"));
}

}  // namespace
}  // namespace aft::server
