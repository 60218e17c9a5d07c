// Requests that do not finish, because they are refused, cancelled, expired, drained or failed.

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int32_t kManyTokens = 1 << 30;

TEST_F(EngineTest, RefusesASetupThatCannotWork) {
  const auto create = [&](int32_t slots, int64_t runner_tokens, int64_t step_tokens) {
    EngineOptions bad;
    bad.model.max_step_tokens = step_tokens;
    FakeModelRunner::Options runner;
    runner.slots = slots;
    runner.max_step_tokens = runner_tokens;
    return GenerateEngine::Create(bad, std::make_unique<FakeModelRunner>(runner, control),
                                  tokenizer, metrics)
        .status();
  };
  EXPECT_THAT(std::string(create(4, 64, 4).message()), HasSubstr("at least slots + 1 = 5"));
  EXPECT_THAT(std::string(create(4, 64, 65).message()), HasSubstr("exceeds the runner's 64"));
  EXPECT_TRUE(create(4, 64, 5).ok());
}

TEST_F(EngineTest, RefusesAPromptThatTheModelCannotHold) {
  model.max_seq_len = 4;
  Start();
  EXPECT_THAT(Refused(Request({1, 2, 3, 4}, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith("prompt: "), HasSubstr("max_seq_len=4"))));
  EXPECT_EQ(Submit(Request({1, 2, 3}, 1)).sink->Wait().status, absl::OkStatus());
}

TEST_F(EngineTest, RefusesRequestsThatWouldBreakTheBatch) {
  Start();
  for (const auto& [prompt, max_tokens] : std::vector<std::pair<std::vector<TokenId>, int32_t>>{
           {{}, 1}, {{1, 257}, 1}, {{-1}, 1}, {{1}, 0}}) {
    EXPECT_EQ(Refused(Request(prompt, max_tokens)).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(control->step_count(), 0);
}

TEST_F(EngineTest, RefusesMoreTokensThanMayWait) {
  model.slots = 1;
  options.limits.max_queued_tokens = 10;
  StartHeld();
  // The first one finds a slot and does not wait, so its length does not matter.
  std::vector<Sink> sinks = {Submit(Request(std::vector<TokenId>(50, 1), 1)).sink};
  sinks.push_back(Submit(Request(std::vector<TokenId>(6, 1), 1)).sink);
  EXPECT_THAT(Refused(Request(std::vector<TokenId>(5, 1), 1)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_tokens=10")));
  GenerationRequest other = Request(std::vector<TokenId>(4, 1), 1);
  other.client = client_b;
  sinks.push_back(Submit(other).sink);
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
}

TEST_F(EngineTest, AClientHasOnlyItsPartOfTheQueue) {
  model.slots = 1;
  options.limits.max_queued_requests = 4;
  options.limits.max_queued_tokens = 20;
  StartHeld();
  const auto prompt = [](size_t tokens) { return std::vector<TokenId>(tokens, 1); };
  std::vector<Sink> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(Submit(Request(prompt(4), 1)).sink);
  const auto refused = StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("the client's part of the queue is full"));
  EXPECT_THAT(Refused(Request(prompt(1), 1)), refused);
  EXPECT_THAT(engine->Reserve(Client()).status(), refused);
  GenerationRequest other = Request(prompt(9), 1);
  other.client = client_b;
  sinks.push_back(Submit(other).sink);
  other.prompt.resize(2);
  EXPECT_THAT(Refused(other), refused);  // half of the tokens
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
  EXPECT_EQ(metrics.rejected(Rejection::kClientQueue).Value(), 3);
}

TEST_F(EngineTest, AClientsOwnQuotaOfTheQueueCounts) {
  model.slots = 1;
  options.scheduling.max_client_queued_requests = 1;
  StartHeld();
  Client generous;
  generous.max_queued_requests = 2;
  const auto generous_client = std::make_shared<const Client>(generous);
  std::vector<Sink> sinks = {Submit(Request({1}, 1)).sink, Submit(Request({1}, 1)).sink};
  EXPECT_EQ(Refused(Request({1}, 1)).code(), absl::StatusCode::kResourceExhausted);
  GenerationRequest request = Request({1}, 1);
  request.client = generous_client;
  sinks.push_back(Submit(request).sink);
  EXPECT_EQ(Refused(request).code(), absl::StatusCode::kResourceExhausted);
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
}

TEST_F(EngineTest, ACancelOrADeadlineBeforeTheFirstTokenCountsAsMissed) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 1;
  StartHeld();
  const Accepted running = Submit(Request({1}, kManyTokens));
  control->WaitUntilBlocked();
  const Accepted impatient = Submit(Request({1}, 1));
  GenerationRequest limited = Request({1}, 1);
  limited.deadline = clock.Now() + seconds(8);
  const Sink late = Submit(limited).sink;
  ScoringRequest scoring = Score({1, 2});
  scoring.method = Method::kScore;
  const Accepted scored = Submit(scoring);  // a score has no first token
  clock.Advance(seconds(5));
  engine->Cancel(impatient.handle);
  engine->Cancel(scored.handle);
  control->RunSteps(1);
  clock.Advance(seconds(4));
  control->Resume();
  const Outcome outcome = impatient.sink->Wait();
  EXPECT_EQ(outcome.timings.queue, seconds(5));
  EXPECT_EQ(outcome.timings.total, seconds(5));
  EXPECT_EQ(outcome.timings.first_token, seconds(0));
  EXPECT_EQ(late->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  engine->Cancel(running.handle);  // it has had its first token
  EXPECT_EQ(running.sink->Wait().status.code(), absl::StatusCode::kCancelled);
  scored.sink->Wait();
  EXPECT_DOUBLE_EQ(SumOf(metrics.ttft_missed_seconds[Method::kGenerate]), 5 + 9);
  EXPECT_DOUBLE_EQ(SumOf(metrics.ttft_seconds[Method::kGenerate]), 5);
  const auto queued = [&](Method method) {
    return SumOf(metrics.queue_seconds(method, ServiceClass::kNormal));
  };
  EXPECT_DOUBLE_EQ(queued(Method::kGenerate), 5 + 9);
  EXPECT_DOUBLE_EQ(queued(Method::kScore), 5);
}

TEST_F(EngineTest, AServerThatStopsCountsNoFirstTokenAsMissed) {
  model.slots = 1;
  StartHeld();
  const Accepted running = Submit(Request({1}, kManyTokens));
  control->WaitUntilBlocked();
  const Sink waiting = Submit(Request({1}, 1)).sink;
  clock.Advance(seconds(5));
  engine->BeginDrain();
  control->Resume();
  EXPECT_EQ(waiting->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_DOUBLE_EQ(SumOf(metrics.ttft_missed_seconds[Method::kGenerate]), 0);
  engine->Cancel(running.handle);
  running.sink->Wait();
}

TEST_F(EngineTest, AReservedPlaceIsForItsRequestAndIsFreedWithoutOne) {
  model.slots = 1;
  options.limits.max_queued_requests = 1;
  StartHeld();
  auto first = engine->Reserve(Client());
  auto second = engine->Reserve(Client());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(engine->load().waiting, 1);
  EXPECT_EQ(Refused(Request({1}, 1)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine->Reserve(Client()).status().code(), absl::StatusCode::kResourceExhausted);
  GenerationRequest request = Request({1, 2}, 3);
  request.reservation = *std::move(second);
  const Sink sink = Submit(request).sink;
  EXPECT_EQ(Refused(Request({1}, 1)).code(), absl::StatusCode::kResourceExhausted);
  first->reset();
  EXPECT_EQ(engine->load().running, 1);
  EXPECT_EQ(engine->load().waiting, 0);
  control->WaitUntilBlocked();  // the request has got the slot
  // A place in another engine does not count in this one.
  auto elsewhere = GenerateEngine::Create(
      options, std::make_unique<FakeModelRunner>(model, control), tokenizer, metrics);
  ASSERT_TRUE(elsewhere.ok());
  GenerationRequest stray = Request({1}, 1);
  stray.reservation = *(*elsewhere)->Reserve(Client());
  const Sink other = Submit(std::move(stray)).sink;
  EXPECT_EQ((*elsewhere)->load().running, 0);
  EXPECT_EQ(engine->load().waiting, 1);
  control->Resume();
  ExpectServed(sink, request);
  EXPECT_EQ(other->Wait().status, absl::OkStatus());
  EXPECT_EQ(engine->load().running, 0);
}

TEST_F(EngineTest, AReservationDoesNotOutliveTheDrain) {
  Start();
  auto reserved = engine->Reserve(Client());
  ASSERT_TRUE(reserved.ok());
  engine->BeginDrain();
  EXPECT_EQ(engine->Reserve(Client()).status().code(), absl::StatusCode::kUnavailable);
  GenerationRequest request = Request({1}, 1);
  request.reservation = *std::move(reserved);
  EXPECT_EQ(Refused(std::move(request)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine->load().running, 0);
}

TEST_F(EngineTest, ARequestThatGotItsSlotNoLongerTakesRoomInTheQueue) {
  model.slots = 1;
  options.limits.max_queued_tokens = 10;
  StartHeld();
  Submit(Request({1}, 1));
  control->WaitUntilBlocked();
  const Accepted second = Submit(Request(std::vector<TokenId>(10, 1), kManyTokens));
  EXPECT_EQ(Refused(Request({1}, 1)).code(), absl::StatusCode::kResourceExhausted);
  control->Resume();
  second.sink->WaitForParts(1);
  const Sink third = Submit(Request(std::vector<TokenId>(10, 1), 1)).sink;
  engine->Cancel(second.handle);
  EXPECT_EQ(third->Wait().status, absl::OkStatus());
}

TEST_F(EngineTest, AClientThatHasSeenTheEndFindsRoomForItsNextRequest) {
  model.slots = 1;
  options.limits.max_queued_requests = 0;
  Start();
  for (int i = 0; i < 50; ++i) ExpectServes();
}

TEST_F(EngineTest, CancelInTheQueueNeverReachesTheModel) {
  model.slots = 1;
  StartHeld();
  const Sink first = Submit(Request({1}, 2)).sink;
  control->WaitUntilBlocked();
  const Accepted queued = Submit(Request({2, 2, 2}, 2));
  engine->Cancel(queued.handle);
  control->Resume();
  EXPECT_EQ(queued.sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(first->Wait().status, absl::OkStatus());
  EXPECT_EQ(control->step_count(), 2);
  EXPECT_EQ(queued.sink->Wait().timings.queue, Duration::zero());
}

TEST_F(EngineTest, CancelInThePromptFreesTheSlotAtTheNextStep) {
  model.slots = 1;
  model.max_step_tokens = 4;
  StartHeld();
  const Accepted accepted = Submit(Request(std::vector<TokenId>(100, 1), 2));
  control->RunSteps(2);
  engine->Cancel(accepted.handle);
  control->Resume();
  EXPECT_EQ(accepted.sink->Wait().status.code(), absl::StatusCode::kCancelled);
  ExpectServes();
  EXPECT_EQ(control->step_count(), 3 + 4);  // the step under way was the last with its rows
}

TEST_F(EngineTest, CancelWhileDecodingStopsAtTheNextStep) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 1;
  StartHeld();
  const Accepted accepted = Submit(Request({1}, kManyTokens));
  const Sink waiting = Submit(Request({2}, 1)).sink;
  control->RunSteps(3);
  engine->Cancel(accepted.handle);
  engine->Cancel(accepted.handle);  // twice is harmless
  control->Resume();
  const Outcome outcome = accepted.sink->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.usage.generated_tokens, 4U);
  EXPECT_EQ(waiting->Wait().status, absl::OkStatus());  // it got the slot
  EXPECT_EQ(control->step_count(), 5);
  engine->Cancel(accepted.handle);  // and so is a finished or unknown handle
  engine->Cancel(999);
  ExpectServes();
}

TEST_F(EngineTest, ACancelOfARequestThatIsGoneDoesNotHoldUpTheNextOne) {
  StartHeld();
  const Accepted accepted = Submit(Request({1}, 100));
  control->WaitUntilBlocked();
  engine->Cancel(999);
  engine->Cancel(accepted.handle);  // arrives with the cancel before
  control->Resume();
  EXPECT_EQ(accepted.sink->Wait().status.code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineTest, ADeadlineThatHasPassedAtArrivalNeverReachesTheModel) {
  Start();
  GenerationRequest request = Request({1}, 1);
  request.deadline = clock.Now();
  EXPECT_EQ(Submit(request).sink->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(control->step_count(), 0);
}

TEST_F(EngineTest, ADeadlineEndsARequestInTheQueueAndOneThatDecodes) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 1;
  StartHeld();
  GenerationRequest decoding = Request({1}, kManyTokens);
  decoding.deadline = clock.Now() + seconds(2);
  GenerationRequest queued = Request({1}, 1);
  queued.deadline = clock.Now() + seconds(1);
  const Sink a = Submit(decoding).sink;
  const Sink b = Submit(queued).sink;
  const Sink c = Submit(Request({1}, 1)).sink;
  control->RunSteps(2);
  clock.Advance(seconds(1));
  control->AllowSteps(1);
  EXPECT_EQ(b->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  control->WaitUntilBlocked();
  EXPECT_FALSE(a->finished());
  clock.Advance(seconds(1));
  control->Resume();
  const Outcome outcome = a->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(outcome.usage.generated_tokens, 4U);
  EXPECT_EQ(outcome.timings.total, seconds(2));
  EXPECT_EQ(c->Wait().status, absl::OkStatus());
  EXPECT_EQ(metrics.finished(Ending::kDeadline).Value(), 2);
}

TEST_F(EngineTest, ShutdownEndsTheRemainingRequestsAtItsDeadline) {
  model.slots = 1;
  Start();
  const Sink running = Submit(Request({1}, kManyTokens)).sink;
  const Sink waiting = Submit(Request({1}, kManyTokens)).sink;
  running->WaitForParts(3);
  const TimePoint deadline = clock.Now() + seconds(5);
  std::thread shutdown([&] { engine->Shutdown(deadline); });
  running->WaitForParts(running->parts().size() + 3);  // it still runs
  clock.Advance(seconds(5));
  shutdown.join();
  EXPECT_EQ(running->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(metrics.finished(Ending::kShutdown).Value(), 2);
  engine->Shutdown(TimePoint::max());  // again is harmless
  EXPECT_EQ(Refused(Request({1}, 1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, AnEarlierDeadlineShortensAShutdownUnderWay) {
  Start();
  const Sink sink = Submit(Request({1}, kManyTokens)).sink;
  sink->WaitForParts(1);
  std::thread shutdown([&] { engine->Shutdown(TimePoint::max()); });
  sink->WaitForParts(3);
  engine->Shutdown(TimePoint::min());
  shutdown.join();
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, DestructionEndsEveryRequest) {
  Start();
  const Sink sink = Submit(Request({1}, kManyTokens)).sink;
  engine.reset();
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, ARequestWithoutATokenEndsAloneAndItsNeighboursContinue) {
  model.next_token = [](uint64_t, int64_t position) {
    return position == 10 ? kNoToken : static_cast<TokenId>(position);
  };
  Start();
  const GenerationRequest doomed = Request(std::vector<TokenId>(7, 1), 20);
  const GenerationRequest healthy = Request({1}, 6);
  const Sink bad = Submit(doomed).sink;
  const Sink good = Submit(healthy).sink;
  const Outcome outcome = bad->Wait();
  EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kInternal, HasSubstr(doomed.id)));
  EXPECT_EQ(outcome.usage.generated_tokens, 3U);
  EXPECT_TRUE(good->Wait().status.ok());
  EXPECT_EQ(good->tokens().size(), 6U);
}

TEST_F(EngineTest, EveryStepReportsWhatTheDeviceSays) {
  DeviceStats device;
  device.memory_total = 1000;
  device.memory_used = 600;
  device.step_seconds = 0.25;
  device.step_was_graph = true;
  model.device_stats = &device;
  Start();
  ExpectServes();
  engine.reset();
  const auto steps = static_cast<double>(control->step_count());
  EXPECT_GT(steps, 0);
  EXPECT_EQ(metrics.device_memory_total, 1000);
  EXPECT_EQ(metrics.device_memory_used, 600);
  EXPECT_EQ(metrics.device_graph_steps.Value(), steps);
  EXPECT_EQ(metrics.device_eager_steps.Value(), 0);
  const auto times = metrics.device_step_seconds.Collect().histogram;
  EXPECT_EQ(static_cast<double>(times.sample_count), steps);
  EXPECT_EQ(times.sample_sum, 0.25 * steps);
  device.step_was_graph = false;
  Start();
  ExpectServes();
  engine.reset();
  EXPECT_EQ(metrics.device_graph_steps.Value(), steps);
  EXPECT_EQ(metrics.device_eager_steps.Value(), static_cast<double>(control->step_count()) - steps);
}

// The engine's thread needs that lock to end requests.
TEST_F(EngineTest, ARefusedRequestIsFreedWithoutTheLockOfAcceptedOnes) {
  Start();
  engine->BeginDrain();
  const Client last;
  bool may_lock = false;
  GenerationRequest request = Request({1}, 1);
  request.client = std::shared_ptr<const Client>(&last, [&](const Client* /*client*/) {
    const std::future<void> other =
        std::async(std::launch::async, [&] { engine->Reserve(*client_b).IgnoreError(); });
    // The destructor of `other` would wait for a lock that this thread has.
    may_lock = other.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
    AFT_CHECK(may_lock);
  });
  EXPECT_EQ(Refused(std::move(request)).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(may_lock);
}

TEST_F(EngineTest, AReaderThatRefusesTheLastDeltaLosesItsRequestToo) {
  Start();
  const auto slow = std::make_shared<RecordingSink>(/*accept=*/3);
  Submit(Request({1}, 4), slow);
  EXPECT_EQ(slow->Wait().status.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace aft::server
