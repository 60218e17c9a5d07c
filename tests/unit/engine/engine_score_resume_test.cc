// Scores that broke off, and the requests for the rest of them.

#include <algorithm>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EngineScoreResumeTest : public EngineTest {
 protected:
  struct Answer {
    std::vector<float> scores;
    Outcome outcome;
  };
  // `first`: the index of the first score.
  static Answer Read(const Sink& sink, size_t first) {
    Answer answer;
    answer.outcome = sink->Wait();
    for (const TokenDelta& delta : sink->parts()) {
      EXPECT_EQ(delta.first_index, first + answer.scores.size());
      EXPECT_FALSE(delta.tokens.empty());
      for (const SampledToken& token : delta.tokens) answer.scores.push_back(token.logprob);
    }
    return answer;
  }
  Answer Run(ScoringRequest request) {
    const auto tokens = static_cast<int64_t>(request.text.size());
    const int64_t first = tokens - request.scores(tokens) + request.scored;
    return Read(Submit(std::move(request)).sink, static_cast<size_t>(first));
  }

  // A request for the rest, from a client that has the first `count` scores.
  static ScoringRequest Rest(ScoringRequest request, const Answer& whole, size_t count) {
    request.scored = static_cast<int64_t>(count);
    for (size_t i = 0; i < count; ++i) request.logprob += whole.scores[i];
    return request;
  }

  static void ExpectRest(const Answer& rest, const Answer& whole, size_t count) {
    const auto first = whole.scores.begin() + static_cast<std::ptrdiff_t>(count);
    EXPECT_EQ(rest.scores, std::vector<float>(first, whole.scores.end()));
    EXPECT_EQ(rest.outcome.status, absl::OkStatus());
    EXPECT_EQ(rest.outcome.reason, FinishReason::kDone);
    EXPECT_EQ(rest.outcome.logprob, whole.outcome.logprob);
    EXPECT_EQ(rest.outcome.scored_bytes, whole.outcome.scored_bytes);
    EXPECT_EQ(rest.outcome.usage.prompt_tokens, whole.outcome.usage.prompt_tokens);
    EXPECT_EQ(rest.outcome.usage.scored_tokens, whole.outcome.usage.scored_tokens);
    EXPECT_EQ(rest.outcome.usage.resumed_tokens, count);
    ExpectSameTurn(rest.outcome, whole.outcome);
  }

  std::vector<TokenId> AnyText(int64_t length) { return RandomText(length, model.vocab_size); }
};

TEST_F(EngineScoreResumeTest, WhereverScoresBreakOffTheRestIsWhatWouldHaveCome) {
  model.max_step_tokens = 8;
  Start();
  const ScoringRequest request = Score(AnyText(20));
  const Answer whole = Run(request);
  ASSERT_EQ(whole.scores.size(), 19U);
  EXPECT_EQ(whole.outcome.usage.resumed_tokens, 0U);
  for (size_t count = 0; count <= 19; ++count) {
    SCOPED_TRACE(count);
    const double scored = metrics.scored_tokens.Value();
    const double read = metrics.prompt_tokens.Value();
    const Answer rest = Run(Rest(request, whole, count));
    ExpectRest(rest, whole, count);
    EXPECT_EQ(rest.outcome.computed_tokens, metrics.prompt_tokens.Value() - read);
    EXPECT_EQ(metrics.scored_tokens.Value() - scored, 19 - static_cast<double>(count));
    // If the client has all of them, nothing is read.
    EXPECT_EQ(metrics.prompt_tokens.Value() - read, count == 19 ? 0 : 20);
  }
}

TEST_F(EngineScoreResumeTest, ScoresThatTheClientHasAreNotComputed) {
  model.max_step_tokens = 8;
  Start();
  const ScoringRequest request = Score(AnyText(40));
  const Answer whole = Run(request);
  const size_t before = control->steps().size();
  Run(Rest(request, whole, 19));
  const std::vector<StepInput> steps = control->steps();
  int64_t read = 0;
  int64_t scored = 0;
  for (size_t i = before; i < steps.size(); ++i) {
    ASSERT_EQ(steps[i].rows.size(), 1U);
    const StepRow& row = steps[i].rows.front();
    (row.output == RowOutput::kScore ? scored : read) += static_cast<int64_t>(row.tokens.size());
  }
  EXPECT_EQ(read, 19);
  EXPECT_EQ(scored, 21);
}

TEST_F(EngineScoreResumeTest, AfterAStateAndAlongsideOthersTheRestIsTheSame) {
  model.slots = 3;
  model.max_step_tokens = 16;
  options.model.parking_bytes = int64_t{1} << 20;
  Start();
  std::vector<State> states = {nullptr};
  int pending = 0;
  int all = 0;
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    const State previous =
        states[static_cast<size_t>(random.Below(static_cast<int64_t>(states.size())))];
    ScoringRequest request = Score(AnyText(1 + random.Below(60)));
    request.previous = previous;
    request.store = random.Below(2) == 0;
    RandomOwner(request);
    const GenerationRequest beside = Request(AnyText(1 + random.Below(30)), 20);
    const Accepted generates = Submit(beside);
    const Answer whole = Run(request);
    if (whole.outcome.turn != nullptr) states.push_back(StateOf(whole.outcome));
    const auto count =
        static_cast<size_t>(random.Below(static_cast<int64_t>(whole.scores.size()) + 1));
    if (previous != nullptr && previous->pending != kNoToken) ++pending;
    if (count > 0 && count == whole.scores.size()) ++all;
    ExpectRest(Run(Rest(request, whole, count)), whole, count);
    ExpectServed(generates.sink, beside);
  }
  EXPECT_GT(pending, 30);
  EXPECT_GT(all, 1);
}

TEST_F(EngineScoreResumeTest, MoreScoresThanThereAreAreRefused) {
  Start();
  ScoringRequest request = Score({1, 2, 3});
  request.scored = 3;
  EXPECT_THAT(Refused(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("resume.scores: 3, but the text has 2")));
  request.text = {1};
  request.scored = 1;
  EXPECT_THAT(Refused(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("resume.scores: 1, but the text has 0")));
  request.scored = int64_t{0xFFFFFFFF};
  EXPECT_EQ(Refused(request).code(), absl::StatusCode::kInvalidArgument);
  // A pending token gives the first token a score.
  ScoringRequest before = Score({1, 2});
  before.store = true;
  request.previous = StateOf(Submit(before).sink->Wait());
  request.scored = 1;
  const Answer all = Run(request);
  EXPECT_EQ(all.outcome.status, absl::OkStatus());
  EXPECT_THAT(all.scores, IsEmpty());
  EXPECT_EQ(all.outcome.scored_bytes, 1U);
}

TEST_F(EngineScoreResumeTest, ADrainEndsResumableScoresAndWaitsForTheOthers) {
  model.slots = 3;
  model.max_step_tokens = 8;
  StartHeld();
  const std::vector<TokenId> text = AnyText(200);
  ScoringRequest resumable = Score(text);
  resumable.survival.resumable = true;
  resumable.store = true;
  const Accepted leaves = Submit(resumable);  // is read first
  const Accepted waits = Submit(Score(text));
  control->RunSteps(6);
  engine->BeginDrain();
  control->Resume();
  const Answer part = Read(leaves.sink, 1);
  EXPECT_THAT(part.outcome.status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("resume the stream elsewhere")));
  EXPECT_EQ(part.outcome.hand_over, nullptr);
  EXPECT_EQ(part.outcome.turn, nullptr);
  EXPECT_GT(part.scores.size(), 0U);
  EXPECT_LT(part.scores.size(), 199U);
  const Answer whole = Read(waits.sink, 1);
  EXPECT_EQ(whole.outcome.status, absl::OkStatus());
  EXPECT_EQ(whole.scores.size(), 199U);
  EXPECT_TRUE(std::equal(part.scores.begin(), part.scores.end(), whole.scores.begin()));
}

}  // namespace
}  // namespace aft::server
