// Failures of the model itself: of its steps, its device or its thread.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/check_output.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kLong = 1'000'000;

class EngineFailureTest : public EngineTest {
 protected:
  EngineFailureTest() {
    options.health.step_timeout = milliseconds(100);
    options.on_failed = [this](const std::string& reason) {
      MutexLock lock(mutex_);
      reasons_.push_back(reason);
    };
  }

  std::vector<std::string> reasons() {
    MutexLock lock(mutex_);
    return reasons_;
  }

  absl::StatusCode CodeOf(const Sink& sink) { return sink->Wait().status.code(); }

  // Expects that the model has failed with this in the reason, and that new requests are refused.
  void ExpectFailed(const std::string& reason) {
    EXPECT_THAT(reasons(), ElementsAre(HasSubstr(reason)));
    EXPECT_EQ(Refused(Request({1}, 1)), absl::UnavailableError("model \"fake\" has failed"));
    EXPECT_EQ(engine->Reserve(*AnonymousClient()).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(metrics.rejected(Rejection::kFailed).Value(), 2);
  }

  void ExpectNothingLeft() {
    engine->Shutdown(TimePoint::max());
    EXPECT_EQ(metrics.requests_running.Value(), 0);
    EXPECT_EQ(metrics.requests_waiting.Value(), 0);
    EXPECT_EQ(metrics.waiting_tokens.Value(), 0);
    EXPECT_EQ(metrics.slots_used.Value(), 0);
  }

  // A request that has the only slot, in a step that does not run yet, and one that waits.
  struct Held {
    Sink running;
    Sink waiting;
  };
  Held StartHeldWithTwo() {
    model.slots = 1;
    StartHeld();
    Held held;
    held.running = Submit(Request({1, 2, 3}, kLong)).sink;
    control->WaitUntilBlocked();
    held.waiting = Submit(Request({1}, kLong)).sink;
    return held;
  }
  void ExpectBothEnded(const Held& held) {
    EXPECT_EQ(held.running->Wait().status, absl::UnavailableError("model \"fake\" has failed"));
    EXPECT_EQ(CodeOf(held.waiting), absl::StatusCode::kUnavailable);
    EXPECT_EQ(metrics.finished(Ending::kFailed).Value(), 2);
  }
  // The engine does not hold the sinks any more either.
  void ExpectNothingLeft(const Held& held) {
    ExpectNothingLeft();
    EXPECT_EQ(held.running.use_count(), 1);
    EXPECT_EQ(held.waiting.use_count(), 1);
  }

 private:
  Mutex mutex_;
  std::vector<std::string> reasons_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(EngineFailureTest, MaxFailedStepsInARowFailTheModel) {
  options.health.max_failed_steps = 3;
  Start();
  for (int i = 0; i < 3; ++i) {
    control->FailNext(FakeCall::kCollect, absl::InternalError("no luck"));
    EXPECT_EQ(CodeOf(Submit(Request({1}, 1)).sink),
              i < 2 ? absl::StatusCode::kInternal : absl::StatusCode::kUnavailable);
  }
  ExpectFailed("3 steps in a row failed, the last with: INTERNAL: no luck");
  ExpectNothingLeft();
}

TEST_F(EngineFailureTest, AStepThatWorksStartsTheCountAnew) {
  options.health.max_failed_steps = 2;
  Start();
  for (int i = 0; i < 3; ++i) {
    control->FailNext(FakeCall::kCollect, absl::InternalError("no luck"));
    EXPECT_EQ(CodeOf(Submit(Request({1}, 1)).sink), absl::StatusCode::kInternal);
    ExpectServes();
  }
  EXPECT_THAT(reasons(), ElementsAre());
}

TEST_F(EngineFailureTest, TheModelAndTheClientHaveTheSameTokensOfAFailedStep) {
  options.health.max_failed_steps = 2;
  Start();
  control->FailNext(FakeCall::kCollect, absl::InternalError("no luck"));
  const Outcome outcome = Submit(Request({1, 2, 3}, 1)).sink->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(outcome.computed_tokens, 3U);
  EXPECT_EQ(metrics.prompt_tokens.Value(), 3);
}

TEST_F(EngineFailureTest, WaitingRequestsEndWithTheRunningOnes) {
  options.health.max_failed_steps = 1;
  const Held held = StartHeldWithTwo();
  clock.Advance(milliseconds(30));
  control->FailNext(FakeCall::kCollect, absl::InternalError("no luck"));
  control->Resume();
  ExpectBothEnded(held);
  const Outcome outcome = held.running->Wait();
  EXPECT_EQ(outcome.usage.prompt_tokens, 3);
  EXPECT_EQ(outcome.timings.total, milliseconds(30));
  EXPECT_EQ(metrics.failures(EngineFailure::kModel).Value(), 1);
  ExpectFailed("1 steps in a row");
  ExpectNothingLeft(held);
}

TEST_F(EngineFailureTest, ALostDeviceFailsTheModelAtOnce) {
  Start();
  control->FailNext(FakeCall::kSubmit, absl::UnavailableError("it is gone"));
  EXPECT_EQ(CodeOf(Submit(Request({1}, 1)).sink), absl::StatusCode::kUnavailable);
  ExpectFailed("device is lost: UNAVAILABLE: it is gone");
}

// All requests may begin with a kept state, so that no step is ever submitted to the device.
TEST_F(EngineFailureTest, ADeviceThatIsLostWhileItIsIdleFailsTheModelToo) {
  Start();
  const std::vector<TokenId> prompt(50, 7);
  for (int i = 0; i < 2; ++i) Submit(Request(prompt, 1)).sink->Wait();
  control->FailNext(FakeCall::kRestore, absl::UnavailableError("it is gone"));
  EXPECT_EQ(CodeOf(Submit(Request(prompt, 1)).sink), absl::StatusCode::kUnavailable);
  ExpectFailed("device is lost: UNAVAILABLE: it is gone");
  ExpectNothingLeft();
}

TEST_F(EngineFailureTest, AnExceptionFailsTheModelAndNothingElse) {
  model.next_token = [](uint64_t, int64_t) -> TokenId { throw std::runtime_error("boom"); };
  const Held held = StartHeldWithTwo();
  control->Resume();
  ExpectBothEnded(held);
  ExpectFailed("exception: boom");
  ExpectNothingLeft(held);
}

TEST_F(EngineFailureTest, AnExceptionOfAnyOtherTypeFailsTheModel) {
  model.next_token = [](uint64_t, int64_t) -> TokenId { throw 1; };
  Start();
  EXPECT_EQ(CodeOf(Submit(Request({1}, 1)).sink), absl::StatusCode::kUnavailable);
  ExpectFailed("exception");
}

TEST_F(EngineFailureTest, AStepThatDoesNotEndFailsTheModelWhileItsThreadIsStuck) {
  const Held held = StartHeldWithTwo();
  clock.Advance(milliseconds(100));
  engine->CheckProgress();
  EXPECT_THAT(reasons(), ElementsAre());
  clock.Advance(milliseconds(1));
  engine->CheckProgress();
  ExpectBothEnded(held);
  ExpectFailed("a step did not end within health.step_timeout_ms=100");
  EXPECT_EQ(metrics.requests_running.Value(), 0);
  EXPECT_EQ(metrics.requests_waiting.Value(), 0);
  EXPECT_EQ(metrics.slots_used.Value(), 0);
  engine->CheckProgress();
  EXPECT_EQ(reasons().size(), 1);

  // When the thread continues, this has no effect on the requests.
  control->Resume();
  ExpectNothingLeft(held);
  EXPECT_TRUE(held.running->parts().empty());
  EXPECT_EQ(metrics.finished(Ending::kFailed).Value(), 2);
  EXPECT_EQ(control->step_count(), 1);
}

// The clock also runs while the process is stopped or frozen, or its machine is suspended.
TEST_F(EngineFailureTest, AStepOfAProcessThatWasStoppedMayStillEnd) {
  options.health.step_timeout = std::chrono::minutes(2);
  StartHeld();
  const GenerationRequest request = Request({1}, 5);
  const Sink sink = Submit(request).sink;
  control->WaitUntilBlocked();
  clock.Advance(std::chrono::hours(1));
  engine->CheckProgress();
  EXPECT_THAT(reasons(), ElementsAre());
  control->Resume();
  ExpectServed(sink, request);
}

// A request that waited for Redis comes to the engine later than others that arrived after it.
TEST_F(EngineFailureTest, AStuckEngineReportsItsOldestRequestInAnyOrder) {
  StartHeld();
  std::vector<Sink> sinks = {Submit(Request({1}, 1)).sink};
  control->WaitUntilBlocked();
  clock.Advance(std::chrono::seconds(10));
  sinks.push_back(Submit(Request({1}, 1)).sink);
  GenerationRequest older = Request({1}, 1);
  older.arrival = clock.Now() - std::chrono::seconds(5);
  sinks.push_back(Submit(older).sink);
  EXPECT_EQ(engine->load().oldest_waiting, std::chrono::seconds(5));
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
}

TEST_F(EngineFailureTest, NeitherManyStepsNorIdlenessCountAsAStuckStep) {
  StartHeld();
  const GenerationRequest request = Request({1}, 5);
  const Sink sink = Submit(request).sink;
  for (int i = 0; i < 4; ++i) {
    control->WaitUntilBlocked();
    clock.Advance(milliseconds(100));
    engine->CheckProgress();
    control->AllowSteps(1);
  }
  control->Resume();
  ExpectServed(sink, request);
  while (engine->busy_since() != TimePoint::max()) std::this_thread::yield();
  clock.Advance(std::chrono::hours(1));
  engine->CheckProgress();
  ExpectServes();
  EXPECT_THAT(reasons(), ElementsAre());
}

TEST_F(EngineFailureTest, AShutdownThatMayNotWaitEndsRequestsWithoutTheirThread) {
  const Held held = StartHeldWithTwo();
  EXPECT_FALSE(engine->TryShutdown(TimePoint::min(), milliseconds(1)));
  ExpectBothEnded(held);
  ExpectFailed("did not end with the server");
  EXPECT_FALSE(engine->TryShutdown(TimePoint::max(), milliseconds(1)));  // returns at once
  control->Resume();
  EXPECT_TRUE(engine->TryShutdown(TimePoint::max()));
  EXPECT_TRUE(engine->TryShutdown(TimePoint::max()));
}

TEST_F(EngineFailureTest, AShutdownUnderWayEndsWithTheFailure) {
  const Held held = StartHeldWithTwo();
  std::thread shutdown(
      [&] { EXPECT_FALSE(engine->TryShutdown(TimePoint::max(), milliseconds(1))); });
  clock.Advance(milliseconds(101));
  engine->CheckProgress();
  shutdown.join();
  ExpectBothEnded(held);
}

TEST_F(EngineFailureTest, AShutdownThatMayNotWaitStillLetsRequestsFinish) {
  StartHeld();
  const GenerationRequest request = Request({1}, 20);
  const Sink sink = Submit(request).sink;
  control->WaitUntilBlocked();
  std::thread shutdown([&] { EXPECT_TRUE(engine->TryShutdown(TimePoint::max(), Duration(0))); });
  control->Resume();
  shutdown.join();
  ExpectServed(sink, request);
}

TEST_F(EngineFailureTest, EveryRequestEndsOnceWheneverItFails) {
  Start();
  std::atomic<int> accepted = 0;
  std::vector<std::thread> clients;
  for (int t = 0; t < 4; ++t) {
    const GenerationRequest request = Request({1, 2}, 10);
    clients.emplace_back([this, request, &accepted] {
      std::vector<Sink> sinks;
      while (true) {
        const Sink sink = std::make_shared<RecordingSink>();
        const auto handle = engine->Generate(request, sink);
        if (absl::IsUnavailable(handle.status())) break;
        if (!handle.ok()) {  // the queue is full
          if (!sinks.empty()) sinks.back()->Wait();
          continue;
        }
        sinks.push_back(sink);
        if (++accepted % 5 == 0) engine->Cancel(*handle);
      }
      for (const Sink& sink : sinks) sink->Wait();
    });
  }
  while (accepted < 100) std::this_thread::yield();
  control->Hold();
  control->WaitUntilBlocked();
  clock.Advance(milliseconds(101));
  engine->CheckProgress();
  for (std::thread& client : clients) client.join();  // before the step has ended
  control->Resume();
  ExpectNothingLeft();
  double ended = 0;
  for (const Ending ending : {Ending::kLength, Ending::kCancelled, Ending::kFailed}) {
    ended += metrics.finished(ending).Value();
  }
  EXPECT_EQ(ended, accepted);
  EXPECT_GT(metrics.finished(Ending::kFailed).Value(), 0);
}

TEST(CheckOutputTest, EveryRowHasItsWholeAnswer) {
  Step step;
  step.input.rows.resize(3);
  step.input.rows[0].output = RowOutput::kLast;
  step.input.rows[1].output = RowOutput::kScore;
  step.input.rows[1].targets = {2, 3};
  step.input.rows[2].output = RowOutput::kHidden;
  step.input.rows[2].hidden = 2;
  StepOutput good;
  good.sampled.resize(1);
  good.scored.resize(1);
  good.scored[0].resize(2);
  good.hidden.resize(1);
  good.hidden[0].resize(6);
  EXPECT_TRUE(CheckOutput(step, good, /*width=*/3).ok());
  const auto refused = [&](const auto& spoil, const char* why) {
    StepOutput bad = good;
    spoil(bad);
    EXPECT_THAT(CheckOutput(step, bad, 3), StatusIs(absl::StatusCode::kInternal, HasSubstr(why)));
  };
  constexpr char kRows[] = "rows instead of 1, 1 and 1";
  refused([](StepOutput& output) { output.sampled.clear(); }, kRows);
  refused([](StepOutput& output) { output.scored.clear(); }, kRows);
  refused([](StepOutput& output) { output.hidden.clear(); }, kRows);
  refused([](StepOutput& output) { output.scored[0].pop_back(); }, "left out tokens");
  refused([](StepOutput& output) { output.hidden[0].pop_back(); }, "left out tokens");
}

}  // namespace
}  // namespace aft::server
