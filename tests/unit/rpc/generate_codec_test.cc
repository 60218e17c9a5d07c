#include "server/rpc/generate_codec.h"

#include <chrono>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizers.h"
#include "tests/unit/rpc/decode.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

v1::GenerateRequest Text() {
  v1::GenerateRequest message;
  message.set_text("hi");
  return message;
}

// That each field out of range is refused by name: tests/integration/bad_input_test.cc.

TEST(GenerateCodecTest, UnsetFieldsTakeTheDocumentedDefaults) {
  const auto request = Decode<GenerateCodec>(Text());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre('h', 'i'));
  EXPECT_EQ(request->sampling.temperature, 1.0F);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.top_p, 1.0F);
  EXPECT_EQ(request->sampling.min_p, 0.0F);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.0F);
  EXPECT_EQ(request->sampling.presence_penalty, 0.0F);
  EXPECT_EQ(request->sampling.frequency_penalty, 0.0F);
  EXPECT_NE(request->sampling.seed, Decode<GenerateCodec>(Text())->sampling.seed);  // drawn
  EXPECT_EQ(request->sampling.top_logprobs, -1);
  EXPECT_EQ(request->stop.max_tokens, 256);
  EXPECT_TRUE(request->stop.strings.empty());
  EXPECT_FALSE(request->stop.ignore_eos);
}

TEST(GenerateCodecTest, ZeroDiffersFromUnset) {
  v1::GenerateRequest message = Text();
  message.mutable_sampling()->set_temperature(0);
  message.mutable_sampling()->set_seed(0);
  message.mutable_output()->set_top_logprobs(0);
  const auto request = Decode<GenerateCodec>(message);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sampling.temperature, 0.0F);
  EXPECT_EQ(request->sampling.seed, 0);
  EXPECT_EQ(request->sampling.top_logprobs, 0);
}

TEST(GenerateCodecTest, TakesEveryFieldAtTheEdgeOfItsRange) {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(0);
  message.mutable_tokens()->add_ids(256);
  message.mutable_sampling()->set_temperature(100);
  message.mutable_sampling()->set_top_k(std::numeric_limits<uint32_t>::max());
  message.mutable_sampling()->set_top_p(1);
  message.mutable_sampling()->set_min_p(1);
  message.mutable_sampling()->set_repetition_penalty(10);
  message.mutable_sampling()->set_presence_penalty(-2);
  message.mutable_sampling()->set_frequency_penalty(2);
  message.mutable_sampling()->set_seed(std::numeric_limits<uint64_t>::max());
  message.mutable_stop()->set_max_tokens(1'048'576);
  for (int i = 0; i < 16; ++i) message.mutable_stop()->add_strings(std::string(256, 'x'));
  for (int i = 0; i < 64; ++i) message.mutable_stop()->add_token_ids(256);
  message.mutable_stop()->set_include_stop_string(true);
  message.mutable_stop()->set_ignore_eos(true);
  message.mutable_output()->set_top_logprobs(20);
  const auto request = Decode<GenerateCodec>(message);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre(0, 256));
  EXPECT_EQ(request->sampling.temperature, 100.0F);
  EXPECT_EQ(request->sampling.top_k, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(request->sampling.min_p, 1.0F);
  EXPECT_EQ(request->sampling.repetition_penalty, 10.0F);
  EXPECT_EQ(request->sampling.presence_penalty, -2.0F);
  EXPECT_EQ(request->sampling.frequency_penalty, 2.0F);
  EXPECT_EQ(request->sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(request->sampling.top_logprobs, 20);
  EXPECT_EQ(request->stop.max_tokens, 1'048'576);
  EXPECT_EQ(request->stop.strings.size(), 16);
  EXPECT_EQ(request->stop.token_ids.size(), 64);
  EXPECT_TRUE(request->stop.include_stop_string);
  EXPECT_TRUE(request->stop.ignore_eos);
}

TEST(GenerateCodecTest, InfinityIsOutOfRange) {
  v1::GenerateRequest message = Text();
  message.mutable_sampling()->set_temperature(std::numeric_limits<float>::infinity());
  EXPECT_EQ(Decode<GenerateCodec>(message).status().message(),
            "sampling.temperature: must be in [0, 100], got inf");
}

// Of a request that asks for them.
GenerateCodec WithLogprobs() {
  v1::GenerateRequest message = Text();
  message.mutable_output()->set_top_logprobs(1);
  GenerateCodec codec;
  EXPECT_TRUE(Decode<GenerateCodec>(message, {}, {}, &codec).ok());
  return codec;
}

TEST(GenerateCodecTest, AppendedDeltasBecomeOne) {
  TokenDelta first;
  first.first_index = 5;
  first.tokens.resize(2);
  first.tokens[0].id = 1;
  first.tokens[1].id = 2;
  first.text = "ab";
  TokenDelta second;
  second.first_index = 7;
  second.tokens = {{.id = 3, .logprob = -0.5F, .top = {{.id = 9, .logprob = -0.25F}}}};
  second.text = "c";
  GenerateCodec codec;
  EXPECT_GT(codec.Append(first), 0);
  EXPECT_GT(codec.Append(second), 0);
  v1::GenerateResponse response;
  ASSERT_TRUE(codec.Take(response));
  const v1::Delta& message = response.delta();
  EXPECT_EQ(message.first_index(), 5);
  EXPECT_THAT(message.token_ids(), ElementsAre(1, 2, 3));
  EXPECT_EQ(message.text(), "abc");
  EXPECT_EQ(message.logprobs_size(), 0);

  EXPECT_FALSE(codec.Take(response));  // it was taken

  GenerateCodec with = WithLogprobs();
  with.Append(second);
  ASSERT_TRUE(with.Take(response));
  ASSERT_EQ(response.delta().logprobs_size(), 1);
  EXPECT_EQ(response.delta().logprobs(0).logprob(), -0.5F);
  ASSERT_EQ(response.delta().logprobs(0).top_size(), 1);
  EXPECT_EQ(response.delta().logprobs(0).top(0).token_id(), 9);
}

TEST(GenerateCodecTest, TheSizeOfADeltaIsAboutWhatItCostsOnTheWire) {
  TokenDelta delta;
  for (int i = 0; i < 100; ++i) {
    delta.tokens.push_back({.id = i, .logprob = -1.0F, .top = {{.id = i, .logprob = -1.0F}}});
    delta.text += "x";
  }
  GenerateCodec codec = WithLogprobs();
  const size_t estimate = codec.Append(delta);
  v1::GenerateResponse message;
  ASSERT_TRUE(codec.Take(message));
  EXPECT_GE(estimate * 2, message.ByteSizeLong());
  EXPECT_LE(estimate, message.ByteSizeLong() * 2);
}

v1::Finished EncodeFinished(const Outcome& outcome) {
  v1::Finished message;
  GenerateCodec().Finish(outcome, message);
  return message;
}

TEST(GenerateCodecTest, FinishedNamesTheReason) {
  Outcome outcome;
  outcome.reason = FinishReason::kEos;
  EXPECT_EQ(EncodeFinished(outcome).reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(EncodeFinished(outcome).stopped_by_case(), v1::Finished::STOPPED_BY_NOT_SET);

  outcome.reason = FinishReason::kLength;
  outcome.limit = "stop.max_tokens=3";
  EXPECT_EQ(EncodeFinished(outcome).limit(), "stop.max_tokens=3");

  outcome.reason = FinishReason::kStop;
  outcome.stop_string = "end";
  EXPECT_EQ(EncodeFinished(outcome).stop_string(), "end");
  outcome.stop_token_id = 0;
  EXPECT_EQ(EncodeFinished(outcome).stopped_by_case(), v1::Finished::kStopTokenId);
}

TEST(GenerateCodecTest, NamesTheCharacterThatTheVocabularyLacks) {
  auto tokenizer = MakeCharTokenizer({"h"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto request = Decode<GenerateCodec>(Text(), {.tokenizer = *std::move(tokenizer)});
  EXPECT_EQ(request.status(),
            absl::InvalidArgumentError(
                "text: character 'i' (U+0069) at byte 1 is not in the model's vocabulary"));
}

TEST(GenerateCodecTest, UsageAndTimingsTravelInFull) {
  Outcome outcome;
  outcome.usage = {.prompt_tokens = 3, .generated_tokens = 4};
  outcome.timings.queue = std::chrono::microseconds(5);
  outcome.timings.first_token = std::chrono::microseconds(6);
  outcome.timings.total = std::chrono::hours(2);
  const v1::Finished message = EncodeFinished(outcome);
  EXPECT_EQ(message.usage().prompt_tokens(), 3);
  EXPECT_EQ(message.usage().generated_tokens(), 4);
  EXPECT_EQ(message.timings().queue_us(), 5);
  EXPECT_EQ(message.timings().first_token_us(), 6);
  EXPECT_EQ(message.timings().total_us(), 7'200'000'000);
}

}  // namespace
}  // namespace aft::server
