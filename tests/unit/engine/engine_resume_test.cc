// Streams that continue an output which broke off elsewhere. The rest is what would have come.

#include "tests/unit/engine/engine_resume_fixture.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(EngineResumeTest, WhereverAStreamBreaksItContinuesAsIfItHadNot) {
  model.slots = 2;
  model.max_step_tokens = 16;
  StartHeld();
  const Accepted endless = Submit(Request({0}, 1'000'000));  // so that there is always a next step
  control->Resume();
  std::vector<State> states = {nullptr};
  int ended = 0;
  int over = 0;
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    GenerationRequest request = RandomRequest(
        states[static_cast<size_t>(random.Below(static_cast<int64_t>(states.size())))]);
    RandomStops(Run(request).tokens, request);
    const Answer whole = Run(request);
    if (whole.outcome.turn != nullptr) states.push_back(StateOf(whole.outcome));
    const auto size = static_cast<int64_t>(whole.tokens.size());
    const std::vector<size_t> cuts = {static_cast<size_t>(random.Below(size + 1)),
                                      static_cast<size_t>(random.Below(size + 1)),
                                      static_cast<size_t>(size)};
    std::vector<Sink> sinks;
    control->Hold();
    for (const size_t cut : cuts) {
      if (sinks.size() == 1) control->RunSteps(1);
      RandomOwner(request);
      sinks.push_back(Submit(Resumed(request, whole.tokens, cut)).sink);
    }
    control->Resume();
    for (size_t i = 0; i < cuts.size(); ++i) {
      SCOPED_TRACE(cuts[i]);
      ExpectGoesOn(Read(sinks[i], cuts[i]), whole, cuts[i]);
    }
    ended += whole.outcome.reason == FinishReason::kLength ? 0 : 1;
    over += Read(sinks.back(), cuts.back()).outcome.timings.first_token == Duration(0) ? 1 : 0;
  }
  engine->Cancel(endless.handle);
  EXPECT_GT(ended, 20);
  EXPECT_GT(over, 20);
  EXPECT_GT(metrics.parks.Value(), 0);
}

TEST_F(EngineResumeTest, AnOutputThatHasEndedNeedsNoStep) {
  Start();
  GenerationRequest request = Request({1, 2, 3}, 6);
  const Answer whole = Run(request);
  const int64_t steps = control->step_count();
  const Answer again = Run(Resumed(request, whole.tokens, 6));
  EXPECT_THAT(again.tokens, IsEmpty());
  EXPECT_EQ(again.outcome.limit, "stop.max_tokens=6");
  EXPECT_EQ(again.outcome.usage.generated_tokens, 6U);
  EXPECT_EQ(control->step_count(), steps);
  // For the state to store, all but the last token has to be read.
  request.store = true;
  Run(Resumed(request, whole.tokens, 6));
  EXPECT_EQ(control->step_count(), steps + 1);
  const StepRow row = control->steps().back().rows.front();
  EXPECT_EQ(row.tokens.size(), 8U);
  EXPECT_EQ(row.output, RowOutput::kNone);
}

TEST_F(EngineResumeTest, AResumedOutputIsChargedAsAPromptAndCountedOnce) {
  Start();
  const GenerationRequest request = Request({1, 2, 3}, 10);
  const Answer whole = Run(request);
  const double read = metrics.prompt_tokens.Value();
  EXPECT_EQ(read, 3);
  EXPECT_EQ(metrics.generated_tokens.Value(), 10);
  Run(Resumed(request, whole.tokens, 7));
  EXPECT_EQ(metrics.prompt_tokens.Value(), read + 10);
  EXPECT_EQ(metrics.generated_tokens.Value(), 13);
}

TEST_F(EngineResumeTest, ALongOutputDoesNotCountAgainstItsOwnLength) {
  model.max_seq_len = 12;
  Start();
  const GenerationRequest request = Request({1, 2, 3}, 100);
  const Answer whole = Run(request);
  EXPECT_EQ(whole.outcome.limit, "model max_seq_len=12");
  ASSERT_EQ(whole.tokens.size(), 9U);
  for (const size_t cut : {0U, 5U, 8U, 9U}) {
    ExpectGoesOn(Run(Resumed(request, whole.tokens, cut)), whole, cut);
  }
  std::vector<TokenId> more = whole.tokens;
  more.push_back(1);
  EXPECT_THAT(RefusedOutput(request, more),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("resume.token_ids: 10 tokens, but the output ends with 9 (model "
                                 "max_seq_len=12)")));
}

TEST_F(EngineResumeTest, NoOutputContinuesAfterItsEnd) {
  Start();
  GenerationRequest request = Request({1, 2, 3}, 4);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(RefusedOutput(request, {1, 2, 3, 4, 5, 6}),
              StatusIs(invalid, HasSubstr("resume.token_ids: 6 tokens, but the output ends with 4 "
                                          "(stop.max_tokens=4)")));
  request.stop.strings = {"ab"};
  EXPECT_THAT(RefusedOutput(request, {'x', 'a', 'b', 'c'}),
              StatusIs(invalid, AllOf(HasSubstr("resume.token_ids: 4 tokens"),
                                      HasSubstr("ends with 3 (a stop string)"))));
  request.stop.token_ids = {9};
  EXPECT_THAT(RefusedOutput(request, {'x', 9}),
              StatusIs(invalid, HasSubstr("resume.token_ids[1]: token 9 ends an output")));
  request.stop.ignore_eos = false;
  EXPECT_THAT(RefusedOutput(request, {FakeTokenizer::kEos}),
              StatusIs(invalid, HasSubstr("resume.token_ids[0]")));
  EXPECT_THAT(RefusedOutput(request, {257}), StatusIs(invalid, HasSubstr("vocabulary")));
  request.prompt = {};
  EXPECT_THAT(RefusedOutput(request, {1}), StatusIs(invalid, HasSubstr("prompt: is empty")));
  EXPECT_EQ(metrics.rejected(Rejection::kInvalid).Value(), 6);
  ExpectServes();
}

TEST_F(EngineResumeTest, ACancelBeforeTheFirstTokenCountsTheResumedOutput) {
  StartHeld();
  // The prompt takes more than one step to read, and the first may have begun.
  GenerationRequest request = Request(std::vector<TokenId>(300, 1), 50);
  const Accepted resumed = Submit(Resumed(request, {5, 6, 7, 8}, 4));
  engine->Cancel(resumed.handle);
  control->Resume();
  const Outcome outcome = resumed.sink->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.usage.prompt_tokens, 300U);
  EXPECT_EQ(outcome.usage.resumed_tokens, 4U);
  EXPECT_EQ(outcome.usage.generated_tokens, 4U);
}

}  // namespace
}  // namespace aft::server
