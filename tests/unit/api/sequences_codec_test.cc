// Tests the messages of Generate for several sequences, and how their outcomes are summed up.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/api/aft/generate_codec.h"
#include "server/call/outcome_sum.h"
#include "tests/support/proto_text.h"
#include "tests/unit/api/decode.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

class SequencesCodecTest : public testing::Test {
 protected:
  SequencesCodecTest() {
    EXPECT_TRUE(
        Decode<GenerateCodec>(FromText<v1::GenerateRequest>("text: 'hi' n: 3"), {}, {}, &codec_)
            .ok());
    codec_.ExpectSequences(codec_.sequences());
  }

  void Append(uint32_t sequence, uint32_t first_index, const std::string& text) {
    TokenDelta delta;
    delta.first_index = first_index;
    delta.tokens.emplace_back().id = text[0];
    delta.text = text;
    codec_.Append(std::move(delta), sequence);
  }
  void Finish(uint32_t sequence, const v1::State* state = nullptr) {
    Outcome outcome;
    outcome.reason = FinishReason::kEos;
    outcome.usage.generated_tokens = sequence;
    codec_.AppendFinished(outcome, sequence, state);
  }
  // "0:0 abc" for a delta, "0 end" for a Finished.
  std::vector<std::string> TakeAll() {
    std::vector<std::string> taken;
    v1::GenerateResponse message;
    while (codec_.Take(message)) {
      const std::string sequence = std::to_string(message.sequence());
      taken.push_back(message.has_finished()
                          ? sequence + " end"
                          : sequence + ":" + std::to_string(message.delta().first_index()) + " " +
                                message.delta().text());
    }
    return taken;
  }

  GenerateCodec codec_;
};

TEST_F(SequencesCodecTest, ThePromptsScoresAreSentBeforeTheOutput) {
  const auto request = Decode<GenerateCodec>(
      FromText<v1::GenerateRequest>("text: 'x' prompt_logprobs: true stop { max_tokens: 0 }"), {});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->prompt_scores);
  TokenDelta scores;
  scores.of_prompt = true;
  scores.tokens.push_back({.id = 5, .logprob = -1.0F, .top = {{.id = 9, .logprob = -0.5F}}});
  for (scores.first_index = 1; scores.first_index < 3; ++scores.first_index) {
    codec_.Append(scores, 0);
  }
  Append(0, 0, "a");
  v1::GenerateResponse message;
  ASSERT_TRUE(codec_.Take(message));
  const std::string score = " logprobs { logprob: -1 top { token_id: 9 logprob: -0.5 } }";
  ExpectText(message, "prompt_scores { first_index: 1 token_ids: [5, 5]" + score + score + " }");
  EXPECT_THAT(TakeAll(), ElementsAre("0:0 a"));
  EXPECT_EQ(codec_.pending_bytes(), 0U);
}

TEST_F(SequencesCodecTest, TheLastScoresPrecedeTheOutputOfEverySequence) {
  TokenDelta scores;
  scores.of_prompt = true;
  scores.tokens.emplace_back().id = 5;
  v1::GenerateResponse message;
  for (scores.first_index = 1; scores.first_index < 3; ++scores.first_index) {
    codec_.Append(scores, 0);
    if (scores.first_index == 2) Append(1, 0, "a");
    ASSERT_TRUE(codec_.Take(message));
    EXPECT_EQ(message.prompt_scores().first_index(), scores.first_index);
  }
  EXPECT_THAT(TakeAll(), ElementsAre("1:0 a"));
}

// A client that resumes the stream gets such text again.
TEST_F(SequencesCodecTest, TextWithoutTokensIsNotMergedWithTokensBeforeIt) {
  Append(1, 0, "a");
  codec_.Append({.first_index = 1, .tokens = {}, .text = "b"}, 1);
  Finish(1);
  Append(2, 0, "c");
  EXPECT_THAT(TakeAll(), ElementsAre("1:0 a", "2:0 c", "1:1 b", "1 end"));
  EXPECT_EQ(codec_.pending_bytes(), 0U);
}

TEST_F(SequencesCodecTest, WaitingTokensOfASequenceAreOneMessageAndSequencesTakeTurns) {
  EXPECT_EQ(codec_.sequences(), 3U);
  Append(1, 5, "a");
  Append(0, 2, "b");
  Append(1, 6, "c");
  EXPECT_EQ(codec_.pending_bytes(), 3 * (3 + 1));
  EXPECT_THAT(TakeAll(), ElementsAre("0:2 b", "1:5 ac"));
  EXPECT_EQ(codec_.pending_bytes(), 0U);
  for (uint32_t i = 0; i < 3; ++i) Append(i, 7, "d");
  v1::GenerateResponse message;
  ASSERT_TRUE(codec_.Take(message));
  EXPECT_EQ(message.sequence(), 2U);  // it was the turn of this sequence
  Append(2, 8, "e");
  EXPECT_THAT(TakeAll(), ElementsAre("0:7 d", "1:7 d", "2:8 e"));
}

TEST_F(SequencesCodecTest, FinishedWaitsOnlyForTheTokensOfItsSequence) {
  v1::State state;
  state.set_id("an id");
  Append(0, 0, "a");
  Append(1, 0, "b");
  Finish(0, &state);
  Finish(2);
  const size_t bytes = codec_.pending_bytes();
  EXPECT_GT(bytes, 2 * 4 + 5U);
  EXPECT_EQ(codec_.held_bytes(), 5 * bytes);
  EXPECT_THAT(TakeAll(), ElementsAre("0:0 a", "1:0 b", "2 end", "0 end"));
  EXPECT_EQ(codec_.pending_bytes(), 0U);
  Finish(1, &state);
  v1::GenerateResponse message;
  ASSERT_TRUE(codec_.Take(message));
  EXPECT_EQ(message.sequence(), 1U);
  EXPECT_EQ(message.finished().reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(message.finished().usage().generated_tokens(), 1U);
  EXPECT_EQ(message.finished().state().id(), "an id");
  EXPECT_FALSE(codec_.Take(message));
}

TEST_F(SequencesCodecTest, DropRemovesAllWaitingMessages) {
  for (uint32_t i = 0; i < 3; ++i) Append(i, 7, "d");
  Finish(1);
  codec_.Drop();
  EXPECT_EQ(codec_.pending_bytes(), 0U);
  EXPECT_THAT(TakeAll(), ElementsAre());
  Append(1, 9, "x");
  EXPECT_EQ(codec_.pending_bytes(), 4U);
  EXPECT_THAT(TakeAll(), ElementsAre("1:9 x"));
  EXPECT_EQ(codec_.pending_bytes(), 0U);
}

TEST(OutcomeSumTest, TheCallHasTheFirstErrorAndTheWholeTime) {
  Outcome one;
  one.usage.prompt_tokens = 5;
  one.usage.generated_tokens = 7;
  one.usage.cached_tokens = 3;
  one.usage.cache_miss = CacheMiss::kDiverged;
  one.usage.diverged_at = 4;
  one.timings = {
      .queue = milliseconds(1), .first_token = milliseconds(0), .total = milliseconds(9)};
  Outcome two = one;
  two.usage.prompt_tokens = two.usage.cached_tokens = two.usage.diverged_at = 0;
  two.usage.cache_miss = CacheMiss::kNone;
  two.timings = {
      .queue = milliseconds(1), .first_token = milliseconds(4), .total = milliseconds(6)};
  two.status = absl::InternalError("first");
  Outcome three = two;
  three.timings.first_token = milliseconds(3);
  three.timings.queue = milliseconds(2);
  three.status = absl::CancelledError("second");
  three.reason = FinishReason::kStop;
  Outcome total;
  AddOutcome(one, total);
  EXPECT_TRUE(total.status.ok());
  EXPECT_EQ(total.timings.first_token, milliseconds(0));
  AddOutcome(two, total);
  EXPECT_EQ(total.timings.first_token, milliseconds(4));
  AddOutcome(three, total);
  EXPECT_EQ(total.usage.cached_tokens, 3U);
  EXPECT_EQ(total.usage.cache_miss, CacheMiss::kDiverged);
  EXPECT_EQ(total.usage.diverged_at, 4U);
  one.usage.cached_tokens = 0;
  AddOutcome(one, total);
  EXPECT_EQ(total.status, absl::InternalError("first"));
  EXPECT_EQ(total.usage.prompt_tokens, 10U);
  EXPECT_EQ(total.usage.cached_tokens, 3U);
  EXPECT_EQ(total.usage.generated_tokens, 28U);
  EXPECT_EQ(total.timings.queue, milliseconds(2));
  EXPECT_EQ(total.timings.first_token, milliseconds(3));
  EXPECT_EQ(total.timings.total, milliseconds(9));
  EXPECT_EQ(total.reason, one.reason);
  three.timings = {
      .queue = milliseconds(7), .first_token = milliseconds(8), .total = milliseconds(9)};
  AddOutcome(three, total);
  EXPECT_EQ(total.timings.queue, milliseconds(3));  // not above first_token
}

}  // namespace
}  // namespace aft::server
