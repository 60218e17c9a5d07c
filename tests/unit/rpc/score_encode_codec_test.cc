#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/encode_codec.h"
#include "server/rpc/score_codec.h"
#include "tests/unit/rpc/decode.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

// That each field out of range is refused by name: tests/integration/{score,encode}_test.cc.

TEST(ScoreCodecTest, UnsetFieldsTakeTheirDefaults) {
  v1::ScoreRequest message;
  message.set_text("hi");
  const auto request = Decode<ScoreCodec>(message);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->text, ElementsAre('h', 'i'));
  EXPECT_EQ(request->top_logprobs, 0);
}

TEST(ScoreCodecTest, TheNearerLimitIsTheOneThatIsNamed) {
  v1::ScoreRequest message;
  message.set_text("12345678");
  LimitsConfig limits;
  limits.max_prompt_tokens = 6;
  EXPECT_EQ(Decode<ScoreCodec>(message, {.max_seq_len = 7}, limits).status().message(),
            "text: must have at most 6 tokens, got 8");
  EXPECT_EQ(Decode<ScoreCodec>(message, {.max_seq_len = 5}, limits).status().message(),
            "text: must have at most 5 tokens (the model's max_seq_len), got 8");
  limits.max_prompt_tokens = 8;
  EXPECT_TRUE(Decode<ScoreCodec>(message, {.max_seq_len = 8}, limits).ok());
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
  ScoreCodec codec;
  const size_t bytes = codec.Append(first) + codec.Append(second);
  v1::ScoreResponse response;
  ASSERT_TRUE(codec.Take(response));
  const v1::ScoreChunk& message = response.chunk();
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
  v1::ScoreFinished message;
  ScoreCodec().Finish(outcome, message);
  EXPECT_EQ(message.scored_tokens(), 4U);
  EXPECT_EQ(message.scored_bytes(), 10U);
  EXPECT_EQ(message.logprob(), -8);
  EXPECT_DOUBLE_EQ(message.perplexity(), std::exp(2.0));
  EXPECT_EQ(message.timings().total_us(), 7U);
  ScoreCodec().Finish(Outcome(), message);
  EXPECT_EQ(message.perplexity(), 0);
}

TEST(EncodeCodecTest, UnsetFieldsTakeTheirDefaults) {
  v1::EncodeRequest message;
  message.set_raw("hi");
  const auto request = Decode<EncodeCodec>(message, {.max_batch_tokens = 2});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->text, ElementsAre('h', 'i'));
  EXPECT_EQ(request->pooling, Pooling::kNone);
  EXPECT_FALSE(request->normalize);
}

TEST(EncodeCodecTest, TheModelsOwnLengthCountsWhereItIsNearer) {
  v1::EncodeRequest message;
  message.set_text("12345678");
  EXPECT_EQ(
      Decode<EncodeCodec>(message, {.max_seq_len = 5, .max_batch_tokens = 6}).status().message(),
      "text: must have at most 5 tokens (the model's max_seq_len), got 8");
  EXPECT_EQ(
      Decode<EncodeCodec>(message, {.max_seq_len = 7, .max_batch_tokens = 6}).status().message(),
      "text: must have at most 6 tokens (the model's batch.max_tokens), got 8");
}

// What a client gets of `values`, message by message.
std::vector<v1::Vectors> Send(std::vector<float> values, int64_t width) {
  v1::EncodeRequest message;
  message.set_text("x");
  EncodeCodec codec;
  EXPECT_TRUE(Decode<EncodeCodec>(message, {.vector_width = width}, {}, &codec).ok());
  codec.Append(std::move(values));
  std::vector<v1::Vectors> messages;
  for (v1::EncodeResponse response; codec.Take(response);) messages.push_back(response.vectors());
  return messages;
}

TEST(EncodeCodecTest, VectorsAreNeverCut) {
  constexpr size_t kWidth = 1000;
  std::vector<float> values(200 * kWidth);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<float> sent;
  for (const v1::Vectors& message : Send(values, kWidth)) {
    EXPECT_EQ(message.first_index() * kWidth, sent.size());
    EXPECT_EQ(message.values_size() % kWidth, 0U);
    EXPECT_LE(message.ByteSizeLong(), size_t{34} << 10);
    sent.insert(sent.end(), message.values().begin(), message.values().end());
  }
  EXPECT_EQ(sent, values);
}

TEST(EncodeCodecTest, AVectorLargerThanAMessageGoesAlone) {
  const std::vector<v1::Vectors> messages = Send(std::vector<float>(2 * 100'000, 1.0F), 100'000);
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[1].first_index(), 1U);
  EXPECT_EQ(messages[1].values_size(), 100'000);
}

}  // namespace
}  // namespace aft::server
