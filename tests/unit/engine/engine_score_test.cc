// The results of texts to score, alone and alongside generations.

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

class EngineScoreTest : public EngineTest {
 protected:
  static std::vector<TokenId> Text(size_t size, TokenId first = 3) {
    std::vector<TokenId> text(size);
    for (size_t i = 0; i < size; ++i) text[i] = (first + 7 * static_cast<TokenId>(i)) % 256;
    return text;
  }

  // Submits the texts as one call. REQUIRES: the engine accepts it.
  std::vector<Sink> SubmitCall(const std::vector<ScoringRequest>& texts) {
    std::vector<Sink> sinks = Sinks(texts.size());
    AFT_CHECK(engine->ScoreTexts(texts, {sinks.begin(), sinks.end()}).ok());
    return sinks;
  }

  // All scores of a finished request, whose chunks must follow each other.
  static std::vector<SampledToken> Scores(const RecordingSink& sink) {
    std::vector<SampledToken> scores;
    for (const TokenDelta& delta : sink.parts()) {
      EXPECT_EQ(delta.first_index, scores.size() + 1);
      EXPECT_FALSE(delta.tokens.empty());
      EXPECT_EQ(delta.text, "");
      scores.insert(scores.end(), delta.tokens.begin(), delta.tokens.end());
    }
    return scores;
  }

  static void ExpectScores(const RecordingSink& sink, const Outcome& outcome,
                           const std::vector<TokenId>& text) {
    const std::vector<SampledToken> scores = Scores(sink);
    const std::vector<SampledToken> expected = FakeModelRunner::Score(text, 0);
    ASSERT_EQ(scores.size(), expected.size());
    double sum = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].id, text[i + 1]);
      EXPECT_EQ(scores[i].logprob, expected[i].logprob);
      sum += expected[i].logprob;
    }
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.reason, FinishReason::kDone);
    EXPECT_EQ(outcome.logprob, sum);
    EXPECT_EQ(outcome.usage.prompt_tokens, text.size());
    EXPECT_EQ(outcome.usage.scored_tokens, text.size() - 1);
    EXPECT_EQ(outcome.scored_bytes, text.size() - 1);  // these tokens are bytes
    EXPECT_EQ(outcome.usage.generated_tokens, 0U);
  }
};

TEST_F(EngineScoreTest, ALongTextComesInChunksThatShareTheStepsBudget) {
  model.slots = 2;
  model.max_step_tokens = 8;
  Start();
  // The last chunk of the text of 9 tokens has nothing to score, and neither has a text of one.
  for (const size_t size : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{100}}) {
    const int64_t before = control->step_count();
    const std::vector<TokenId> text = Text(size);
    const Sink sink = Submit(Score(text)).sink;
    ExpectScores(*sink, sink->Wait(), text);
    EXPECT_EQ(control->step_count() - before, static_cast<int64_t>((size + 7) / 8));
  }
}

TEST_F(EngineScoreTest, AlternativesComeWhenTheyAreAskedFor) {
  Start();
  ScoringRequest request = Score(Text(5));
  request.top_logprobs = 3;
  const Sink sink = Submit(request).sink;
  EXPECT_TRUE(sink->Wait().status.ok());
  for (const SampledToken& token : Scores(*sink)) EXPECT_EQ(token.top.size(), 3U);
}

TEST_F(EngineScoreTest, ATextMayFillTheModelsWholeLength) {
  model.max_seq_len = 12;
  Start();
  const std::vector<TokenId> text = Text(12);
  const Sink sink = Submit(Score(text)).sink;
  ExpectScores(*sink, sink->Wait(), text);
  EXPECT_THAT(Refused(Score(Text(13))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 12 tokens, got 13")));
}

TEST_F(EngineScoreTest, ScoresAndGenerationsShareStepsAndDoNotHarmEachOther) {
  model.slots = 5;
  model.max_step_tokens = 16;
  Start();
  std::vector<std::pair<std::vector<TokenId>, Sink>> scored;
  std::vector<std::pair<GenerationRequest, Sink>> generated;
  for (int i = 0; i < 40; ++i) {
    const std::vector<TokenId> text = RandomText(1 + random.Below(70));
    if (random.Below(2) == 0) {
      scored.emplace_back(text, Submit(Score(text)).sink);
    } else {
      const GenerationRequest request = Request(text, 1 + static_cast<int32_t>(random.Below(30)));
      generated.emplace_back(request, Submit(request).sink);
    }
  }
  for (const auto& [text, sink] : scored) ExpectScores(*sink, sink->Wait(), text);
  for (const auto& [request, sink] : generated) ExpectServed(sink, request);
}

TEST_F(EngineScoreTest, CancelBetweenTwoChunksFreesTheSlot) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 1;
  model.max_step_tokens = 8;
  StartHeld();
  const Accepted accepted = Submit(Score(Text(100)));
  control->RunSteps(2);
  engine->Cancel(accepted.handle);
  control->Resume();
  const Outcome outcome = accepted.sink->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.usage.scored_tokens, 24U);  // the step under way included
  ExpectServes();
  EXPECT_EQ(control->step_count(), 3 + 4);
}

TEST_F(EngineScoreTest, ACancelledTextDoesNotLeaveItsScoresToItsNeighbour) {
  model.max_steps_in_flight = 2;
  model.max_step_tokens = 8;
  StartHeld();
  const Accepted leaves = Submit(Score(Text(50, 3)));
  control->WaitUntilBlocked();
  const std::vector<TokenId> text = Text(50, 90);
  const Sink stays = Submit(Score(text)).sink;
  control->RunSteps(1);  // a step with both texts
  engine->Cancel(leaves.handle);
  control->Resume();
  ExpectScores(*stays, stays->Wait(), text);
  EXPECT_EQ(leaves.sink->Wait().status.code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineScoreTest, ATextWithoutADistributionEndsAloneAndItsNeighboursContinue) {
  model.next_token = [](uint64_t, int64_t position) {
    return position == 10 ? kNoToken : static_cast<TokenId>(position);
  };
  Start();
  const ScoringRequest doomed = Score(Text(20));
  const Sink bad = Submit(doomed).sink;
  const Sink good = Submit(Score(Text(10))).sink;
  EXPECT_THAT(bad->Wait().status, StatusIs(absl::StatusCode::kInternal, HasSubstr(doomed.id)));
  ExpectScores(*good, good->Wait(), Text(10));
}

TEST_F(EngineScoreTest, AReaderThatIsTooSlowLosesItsScore) {
  model.max_step_tokens = 8;
  Start();
  const auto slow = std::make_shared<RecordingSink>(/*accept=*/2);
  Submit(Score(Text(60)), slow);
  EXPECT_EQ(slow->Wait().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(slow->parts().size(), 2U);
  ExpectServes();
}

// The texts of a call are one request. max_queue_ms limits how long the call waits to begin.
TEST_F(EngineScoreTest, TheTextsOfACallThatHasBegunWaitAsLongAsTheyHaveTo) {
  options.scheduling.max_queue = std::chrono::seconds(1);
  StartHeld();
  std::vector<ScoringRequest> texts;
  for (size_t i = 0; i < 6; ++i) texts.push_back(Score(Text(10 + i)));  // there are four slots
  const std::vector<Sink> sinks = SubmitCall(texts);
  control->WaitUntilBlocked();
  const Accepted other = Submit(Score(Text(10)));
  clock.Advance(std::chrono::seconds(2));
  control->Resume();
  for (size_t i = 0; i < 6; ++i) ExpectScores(*sinks[i], sinks[i]->Wait(), texts[i].text);
  EXPECT_THAT(other.sink->Wait().status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queue_ms")));
}

// A call ends when even its first text has waited for longer than max_queue_ms.
TEST_F(EngineScoreTest, ACallOfTextsThatHasNotBegunInTimeEnds) {
  options.scheduling.max_queue = std::chrono::seconds(1);
  StartHeld();
  // These are one call, so that the first step has them all.
  const std::vector<Sink> running = SubmitCall(std::vector<ScoringRequest>(4, Score(Text(10))));
  control->WaitUntilBlocked();
  const std::vector<Sink> waiting = SubmitCall({Score(Text(10)), Score(Text(10))});
  clock.Advance(std::chrono::seconds(2));
  control->Resume();
  for (const Sink& sink : waiting) {
    EXPECT_THAT(sink->Wait().status,
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queue_ms")));
  }
  for (const Sink& sink : running) EXPECT_TRUE(sink->Wait().status.ok());
}

}  // namespace
}  // namespace aft::server
