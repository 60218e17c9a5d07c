#include <chrono>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/encode_codec.h"
#include "server/rpc/score_codec.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

// That each field out of range is refused by name: tests/integration/{score,encode}_test.cc.

ModelInfo Model(int64_t max_seq_len = 0) {
  ModelInfo model;
  model.vocab_size = 257;
  model.max_seq_len = max_seq_len;
  return model;
}

TEST(ScoreCodecTest, UnsetFieldsTakeTheirDefaults) {
  v1::ScoreRequest message;
  message.set_text("hi");
  const auto request = DecodeScoreRequest(message, LimitsConfig(), FakeTokenizer(), Model());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->text, ElementsAre('h', 'i'));
  EXPECT_EQ(request->top_logprobs, 0);
}

TEST(ScoreCodecTest, TheNearerLimitIsTheOneThatIsNamed) {
  v1::ScoreRequest message;
  message.set_text("12345678");
  LimitsConfig limits;
  limits.max_prompt_tokens = 6;
  EXPECT_EQ(DecodeScoreRequest(message, limits, FakeTokenizer(), Model(7)).status().message(),
            "text: must have at most 6 tokens, got 8");
  EXPECT_EQ(DecodeScoreRequest(message, limits, FakeTokenizer(), Model(5)).status().message(),
            "text: must have at most 5 tokens (the model's max_seq_len), got 8");
  limits.max_prompt_tokens = 8;
  EXPECT_TRUE(DecodeScoreRequest(message, limits, FakeTokenizer(), Model(8)).ok());
}

TEST(ScoreCodecTest, AppendedChunksBecomeOne) {
  const TokenDelta first = {
      .first_index = 5,
      .tokens = {{.id = 1, .logprob = -1.0F, .top = {}}, {.id = 2, .logprob = -2.0F, .top = {}}},
      .text = ""};
  const TokenDelta second = {
      .first_index = 7,
      .tokens = {{.id = 3, .logprob = -3.0F, .top = {{.id = 9, .logprob = -0.25F}}}},
      .text = ""};
  v1::ScoreChunk message;
  const size_t bytes = AppendScores(first, message) + AppendScores(second, message);
  EXPECT_EQ(message.first_index(), 5U);
  EXPECT_THAT(message.token_ids(), ElementsAre(1U, 2U, 3U));
  ASSERT_EQ(message.logprobs_size(), 3);
  EXPECT_EQ(message.logprobs(2).logprob(), -3.0F);
  EXPECT_EQ(message.logprobs(2).top(0).token_id(), 9U);
  EXPECT_GE(bytes * 2, message.ByteSizeLong());
  EXPECT_LE(bytes, message.ByteSizeLong() * 2);
}

TEST(ScoreCodecTest, FinishedSumsUp) {
  Outcome outcome;
  outcome.usage.scored_tokens = 4;
  outcome.scored_bytes = 10;
  outcome.logprob = -8;
  outcome.timings.total = std::chrono::microseconds(7);
  const v1::ScoreFinished message = EncodeScoreFinished(outcome);
  EXPECT_EQ(message.scored_tokens(), 4U);
  EXPECT_EQ(message.scored_bytes(), 10U);
  EXPECT_EQ(message.logprob(), -8);
  EXPECT_DOUBLE_EQ(message.perplexity(), std::exp(2.0));
  EXPECT_EQ(message.timings().total_us(), 7U);
  EXPECT_EQ(EncodeScoreFinished(Outcome()).perplexity(), 0);
}

TEST(EncodeCodecTest, UnsetFieldsTakeTheirDefaults) {
  v1::EncodeRequest message;
  message.set_raw("hi");
  const auto request =
      DecodeEncodeRequest(message, LimitsConfig(), FakeTokenizer(), Model(), /*tokens=*/2);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->text, ElementsAre('h', 'i'));
  EXPECT_EQ(request->pooling, Pooling::kNone);
  EXPECT_FALSE(request->normalize);
}

TEST(EncodeCodecTest, TheModelsOwnLengthCountsWhereItIsNearer) {
  v1::EncodeRequest message;
  message.set_text("12345678");
  EXPECT_EQ(
      DecodeEncodeRequest(message, LimitsConfig(), FakeTokenizer(), Model(5), 6).status().message(),
      "text: must have at most 5 tokens (the model's max_seq_len), got 8");
  EXPECT_EQ(
      DecodeEncodeRequest(message, LimitsConfig(), FakeTokenizer(), Model(7), 6).status().message(),
      "text: must have at most 6 tokens (the model's batch.max_tokens), got 8");
}

TEST(EncodeCodecTest, VectorsAreNeverCut) {
  constexpr int64_t kWidth = 1000;
  std::vector<float> values(200 * kWidth);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<float> sent;
  for (size_t first = 0; first < 200;) {
    v1::Vectors message;
    const size_t count = FillVectors(values, kWidth, first, message);
    EXPECT_EQ(message.first_index(), first);
    EXPECT_EQ(message.values_size(), static_cast<int>(count) * kWidth);
    EXPECT_LE(message.ByteSizeLong(), size_t{34} << 10);
    sent.insert(sent.end(), message.values().begin(), message.values().end());
    first += count;
  }
  EXPECT_EQ(sent, values);
}

TEST(EncodeCodecTest, AVectorLargerThanAMessageGoesAlone) {
  const std::vector<float> values(2 * 100'000, 1.0F);
  v1::Vectors message;
  EXPECT_EQ(FillVectors(values, 100'000, 1, message), 1U);
  EXPECT_EQ(message.values_size(), 100'000);
}

}  // namespace
}  // namespace aft::server
