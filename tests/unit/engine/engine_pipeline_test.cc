// Two steps in flight: the next step is submitted before the results of this one are known.

#include <chrono>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

class EnginePipelineTest : public EngineTest {
 protected:
  EnginePipelineTest() { model.max_steps_in_flight = 2; }

  std::vector<TokenId> TokensOfRow(size_t step, size_t row) const {
    return control->steps()[step].rows[row].tokens;
  }
};

TEST_F(EnginePipelineTest, TheNextStepIsSubmittedBeforeTheResultOfThisOneIsKnown) {
  StartHeld();
  const GenerationRequest request = Request({1, 2}, 3);
  const Sink sink = Submit(request).sink;
  control->RunSteps(1);  // the second step wants to run, and nothing was delivered yet
  EXPECT_TRUE(sink->parts().empty());
  clock.Advance(std::chrono::microseconds(250));
  control->Resume();
  ExpectServed(sink, request);
  EXPECT_EQ(control->step_count(), 3);  // no step beyond max_tokens
  EXPECT_THAT(TokensOfRow(1, 0), ::testing::ElementsAre(kLastSampled));
  EXPECT_THAT(TokensOfRow(2, 0), ::testing::ElementsAre(kLastSampled));
  // The time in which the second step waited for the first counts only for the first.
  EXPECT_DOUBLE_EQ(SumOf(metrics.step_seconds), 250e-6);
}

TEST_F(EnginePipelineTest, ARowAfterTheEndIsWastedAndItsSlotServesTheNext) {
  model.slots = 1;
  model.next_token = [](uint64_t, int64_t count) { return count < 3 ? 'x' : FakeTokenizer::kEos; };
  Start();
  GenerationRequest ends = Request({0}, 10);
  ends.stop.ignore_eos = false;
  std::vector<Sink> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(Submit(ends).sink);
  for (const Sink& sink : sinks) {
    const Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.reason, FinishReason::kEos);
    EXPECT_EQ(outcome.usage.generated_tokens, 2U);
    EXPECT_EQ(sink->text(), "xx");
  }
  // Each has three tokens. The wasted rows are not counted.
  EXPECT_EQ(metrics.generated_tokens.Value(), 9);
}

TEST_F(EnginePipelineTest, AFailedStepEndsItsRequestsAndNotThoseOfTheNextStep) {
  model.slots = 2;
  StartHeld();
  const GenerationRequest requests[] = {Request({1}, 8), Request({2}, 8)};
  const Sink first = Submit(requests[0]).sink;
  control->WaitUntilBlocked();  // the first step, with the first request alone
  const Sink second = Submit(requests[1]).sink;
  control->FailNext(FakeCall::kCollect);
  control->Resume();
  EXPECT_EQ(first->Wait().status.code(), absl::StatusCode::kInternal);
  ExpectServed(second, requests[1]);
  ExpectServes();
}

TEST_F(EnginePipelineTest, ARefusedStepEndsAllThatAreInItAndTheNextOnesAreServed) {
  model.slots = 2;
  StartHeld();
  const std::vector<Sink> sinks = {Submit(Request({1}, 8)).sink, Submit(Request({2}, 8)).sink};
  control->RunSteps(2);
  control->FailNext(FakeCall::kSubmit, absl::InvalidArgumentError("secret detail"));
  control->Resume();
  for (const Sink& sink : sinks) {
    EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kInternal);
    EXPECT_FALSE(sink->tokens().empty());  // the steps before were good
  }
  ExpectServes();
}

}  // namespace
}  // namespace aft::server
