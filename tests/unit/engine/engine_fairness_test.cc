// Classes, clients and parking, through the engine.

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "model/api/snapshot_bytes.h"
#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kEndless = 1'000'000;

class EngineFairnessTest : public EngineTest {
 protected:
  GenerationRequest Urgent(int32_t max_tokens = 1) {
    GenerationRequest request = Request({9, 8}, max_tokens);
    request.service_class = ServiceClass::kInteractive;
    return request;
  }
  GenerationRequest Batch(int32_t max_tokens = 200) {
    GenerationRequest request = Request({1, 2, 3}, max_tokens);
    request.service_class = ServiceClass::kBatch;
    return request;
  }

  // Starts the request in the only slot, and waits for its first tokens.
  Accepted StartBatch(const GenerationRequest& request) {
    model.slots = 1;
    Start();
    Accepted accepted = Submit(request);
    accepted.sink->WaitForParts(3);
    return accepted;
  }

  // Submits an urgent request that parks another one and runs until it is cancelled.
  Accepted ParkIt() {
    Accepted urgent = Submit(Urgent(kEndless));
    urgent.sink->WaitForParts(2);  // the gauges are set after a step
    return urgent;
  }

  double Count(const prometheus::Counter& counter) { return counter.Value(); }
};

TEST_F(EngineFairnessTest, AParkedStreamContinuesExactlyWhereItWas) {
  model.slots = 1;
  StartHeld();
  const GenerationRequest request = Batch(300);
  const Sink batch = Submit(request).sink;
  control->RunSteps(4);
  for (int i = 0; i < 3; ++i) {
    const GenerationRequest urgent = Urgent(5);
    const Sink sink = Submit(urgent).sink;
    control->RunSteps(10 + ContinuousScheduler::kQuantum);
    ExpectServed(sink, urgent);
  }
  control->Resume();
  ExpectServed(batch, request);
  engine.reset();
  EXPECT_EQ(Count(metrics.parks), 3);
  EXPECT_EQ(Count(metrics.resumes), 3);
  EXPECT_EQ(metrics.requests_parked.Value(), 0);
}

TEST_F(EngineFairnessTest, AParkedTextIsScoredWhole) {
  model.max_step_tokens = 4;
  model.slots = 1;
  ScoringRequest request = Score(RandomText(200));
  request.service_class = ServiceClass::kBatch;
  StartHeld();
  const Sink score = Submit(request).sink;
  control->RunSteps(4);
  const GenerationRequest urgent = Urgent(5);
  const Sink sink = Submit(urgent).sink;
  control->Resume();
  ExpectServed(sink, urgent);
  EXPECT_EQ(score->Wait().status, absl::OkStatus());
  const std::vector<SampledToken> expected = FakeModelRunner::Score(request.text, 0);
  const std::vector<SampledToken> scores = score->all_tokens();
  ASSERT_EQ(scores.size(), expected.size());
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i].logprob, expected[i].logprob) << i;
  EXPECT_EQ(Count(metrics.parks), 1);
}

TEST_F(EngineFairnessTest, TheGaugesCountParkedRequests) {
  const Accepted batch = StartBatch(Batch(kEndless));
  const Accepted urgent = ParkIt();
  EXPECT_EQ(metrics.requests_parked.Value(), 1);
  EXPECT_EQ(metrics.requests_running.Value(), 1);
  EXPECT_EQ(metrics.requests_waiting.Value(), 0);
  EXPECT_EQ(engine->load().waiting, 1);
  engine->Cancel(urgent.handle);
  const size_t before = batch.sink->parts().size();
  batch.sink->WaitForParts(before + 3);
  EXPECT_EQ(metrics.requests_parked.Value(), 0);
  engine->Cancel(batch.handle);
}

TEST_F(EngineFairnessTest, AParkedRequestCanBeCancelled) {
  const Accepted batch = StartBatch(Batch(kEndless));
  const Accepted urgent = ParkIt();
  engine->Cancel(batch.handle);
  const Outcome outcome = batch.sink->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.usage.generated_tokens, batch.sink->tokens().size());
  EXPECT_EQ(metrics.requests_parked.Value(), 0);
  engine->Cancel(urgent.handle);
  ExpectServes();
}

TEST_F(EngineFairnessTest, AParkedRequestHasItsDeadlineAndNoQueueTimeout) {
  options.scheduling.max_queue = seconds(1);
  GenerationRequest request = Batch(kEndless);
  request.deadline = clock.Now() + seconds(10);
  const Accepted batch = StartBatch(request);
  const Accepted urgent = ParkIt();
  clock.Advance(seconds(5));
  urgent.sink->WaitForParts(urgent.sink->parts().size() + 3);
  EXPECT_FALSE(batch.sink->finished());
  clock.Advance(seconds(5));
  EXPECT_EQ(batch.sink->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  engine->Cancel(urgent.handle);
}

TEST_F(EngineFairnessTest, AParkedRequestEndsWithTheServer) {
  const Accepted batch = StartBatch(Batch(kEndless));
  const Accepted urgent = ParkIt();
  engine->Shutdown(TimePoint::min());
  EXPECT_EQ(batch.sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(urgent.sink->Wait().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineFairnessTest, AFailedModelHasNoParkedRequest) {
  const Accepted batch = StartBatch(Batch(kEndless));
  const Accepted urgent = ParkIt();
  control->FailNext(FakeCall::kCollect, absl::UnavailableError("lost"));
  EXPECT_EQ(batch.sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(urgent.sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  engine->Shutdown(TimePoint::max());
  EXPECT_EQ(metrics.requests_parked.Value(), 0);
}

TEST_F(EngineFairnessTest, AStateThatCannotBeReadEndsItsRequestAndNothingElse) {
  const GenerationRequest request = Batch(kEndless);
  const Accepted batch = StartBatch(request);
  control->FailNext(FakeCall::kKeep);
  const GenerationRequest urgent = Urgent(5);
  ExpectServed(Submit(urgent).sink, urgent);
  EXPECT_THAT(batch.sink->Wait().status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr(request.id)));
  ExpectServes();
  EXPECT_EQ(metrics.requests_parked.Value(), 0);
}

TEST_F(EngineFairnessTest, AStateThatCannotBeRestoredEndsItsRequestAndNothingElse) {
  model.slots = 2;
  Start();
  const GenerationRequest request = Batch(kEndless);
  const Sink neighbour = Submit(Urgent(kEndless)).sink;
  const Sink batch = Submit(request).sink;
  batch->WaitForParts(3);
  control->FailNext(FakeCall::kRestore);
  GenerationRequest other = Urgent(5);  // the quota of one client is one slot
  other.client = client_b;
  ExpectServed(Submit(other).sink, other);
  EXPECT_THAT(batch->Wait().status,
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr(request.id), Not(HasSubstr("secret")))));
  neighbour->WaitForParts(neighbour->parts().size() + 3);
  ExpectServes();
}

TEST_F(EngineFairnessTest, WithoutMemoryForAStateNothingIsParked) {
  ModelInfo info;
  info.vocab_size = model.vocab_size;
  options.model.parking_bytes = MaxSnapshotBytes(info) - 1;
  model.slots = 1;
  StartHeld();
  const Sink batch = Submit(Batch(100)).sink;
  control->RunSteps(4);
  const GenerationRequest urgent = Urgent(5);
  const Sink sink = Submit(urgent).sink;
  control->Resume();
  ExpectServed(sink, urgent);
  EXPECT_TRUE(batch->finished());  // before the urgent one had its slot
  EXPECT_EQ(Count(metrics.parks), 0);
}

TEST_F(EngineFairnessTest, AClientThatFillsAllSlotsWithEndlessStreamsKeepsNoOtherWaiting) {
  model.slots = 4;
  Start();
  std::vector<Accepted> endless;
  for (int i = 0; i < 6; ++i) endless.push_back(Submit(Request({1}, kEndless)));
  endless[3].sink->WaitForParts(3);
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = Request({5, 6}, 10);
    request.client = client_b;
    ExpectServed(Submit(request).sink, request);
  }
  for (const Accepted& accepted : endless) EXPECT_FALSE(accepted.sink->finished());
}

// A request beyond the quota of its client waits, so it takes none of the free slots from others.
TEST_F(EngineFairnessTest, WithStrictQuotasAClientWaitsInItsPartOfTheQueue) {
  model.slots = 4;
  options.scheduling.strict_quotas = true;
  options.scheduling.max_client_slots = 1;
  options.limits.max_queued_requests = 2;  // one client gets half of it
  StartHeld();
  std::vector<Sink> sinks;
  for (int i = 0; i < 2; ++i) sinks.push_back(Submit(Request({1}, 2)).sink);
  EXPECT_THAT(Refused(Request({1}, 2)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the client's part")));
  for (const auto& client : {client_b, NamedClient("c"), NamedClient("d")}) {
    GenerationRequest request = Request({1}, 2);
    request.client = client;
    sinks.push_back(Submit(request).sink);
  }
  EXPECT_EQ(engine->load().running, 4);
  EXPECT_EQ(engine->load().waiting, 1);
  Client larger = *AnonymousClient();
  larger.name = "e";
  larger.max_slots = 2;
  EXPECT_EQ(engine->CheckTexts(larger, 3, "texts"), absl::OkStatus());
  EXPECT_THAT(engine->CheckTexts(larger, 4, "texts"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the client may have 3")));
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
}

TEST_F(EngineFairnessTest, ARequestThatWaitsTooLongIsRefusedInTheEnd) {
  model.slots = 1;
  options.scheduling.max_queue = seconds(2);
  StartHeld();
  const Accepted running = Submit(Request({1}, kEndless));
  control->WaitUntilBlocked();
  const Sink first = Submit(Request({1}, 1)).sink;
  clock.Advance(seconds(1));
  const Sink second = Submit(Request({1}, 1)).sink;
  control->RunSteps(1);
  EXPECT_FALSE(first->finished());
  clock.Advance(seconds(1));
  control->RunSteps(2);
  EXPECT_THAT(first->Wait().status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queue_ms=2000")));
  EXPECT_EQ(metrics.finished(Ending::kQueueTimeout).Value(), 1);
  EXPECT_FALSE(second->finished());
  clock.Advance(seconds(9));
  control->Resume();
  EXPECT_EQ(second->Wait().status.code(), absl::StatusCode::kResourceExhausted);
  running.sink->WaitForParts(running.sink->parts().size() + 3);  // it still has its slot
  EXPECT_EQ(metrics.finished(Ending::kSlowClient).Value(), 0);
  EXPECT_DOUBLE_EQ(SumOf(metrics.ttft_missed_seconds[Method::kGenerate]), 2 + 10);
}

TEST_F(EngineFairnessTest, ADeadlineThatCannotBeMetIsRefusedOnceItIsKnown) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 1;
  model.max_step_tokens = 10;
  StartHeld();
  const auto within = [&](size_t tokens, Duration deadline) {
    GenerationRequest request = Request(std::vector<TokenId>(tokens, 1), 1);
    request.deadline = clock.Now() + deadline;
    return request;
  };
  // Nothing has been measured, so nothing is refused. The step takes 10 s for 10 tokens.
  const Sink first = Submit(within(10, seconds(11))).sink;
  control->WaitUntilBlocked();
  clock.Advance(seconds(10));
  control->Resume();
  EXPECT_EQ(first->Wait().status, absl::OkStatus());
  control->Hold();
  GenerationRequest other = Request({1}, 1);
  other.client = client_b;
  const Sink running = Submit(other).sink;
  control->WaitUntilBlocked();
  // A token was measured to take a second. The estimate assumes half of that.
  EXPECT_THAT(Refused(within(100, seconds(49))),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("it is in 49.000 s, and to wait and read the text would take at "
                                 "least 49.500 s")));
  EXPECT_EQ(metrics.rejected(Rejection::kDeadline).Value(), 1);
  EXPECT_EQ(engine->load().running, 1);
  // All texts of a call count for its deadline.
  const auto text = [&] {
    ScoringRequest request = Score(std::vector<TokenId>(100, 1));
    request.scored = 99;
    request.deadline = clock.Now() + seconds(60);
    return request;
  };
  const auto sink = std::make_shared<RecordingSink>();
  EXPECT_THAT(engine->ScoreTexts({text(), text()}, {sink, sink}).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the deadline")));
  const Sink in_time = Submit(within(100, seconds(50))).sink;
  control->Resume();
  EXPECT_EQ(running->Wait().status, absl::OkStatus());
  EXPECT_EQ(in_time->Wait().status, absl::OkStatus());
  GenerationRequest late = Request({1}, 1);
  late.deadline = clock.Now();
  EXPECT_EQ(Submit(late).sink->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
}

// The only slot serves a request in 10 s, and two requests of the client wait for it.
TEST_F(EngineFairnessTest, ADeadlineCountsTheRequestsThatGoBefore) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 1;
  StartHeld();
  std::vector<Sink> before = {Submit(Request({1}, 1)).sink};
  control->WaitUntilBlocked();
  for (int i = 0; i < 4; ++i) before.push_back(Submit(Request({1}, 2)).sink);
  control->RunSteps(2);  // the first of the four has begun while the others wait
  clock.Advance(seconds(10));
  control->RunSteps(1);  // the second has begun
  GenerationRequest request = Request({1}, 1);
  request.deadline = clock.Now() + seconds(9);
  EXPECT_THAT(Refused(request), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("would take at least 10.000 s")));
  Client sharing = *AnonymousClient();
  sharing.shares_by_user = true;
  for (const char* user : {"someone", ""}) {  // it may overtake the requests of other users
    GenerationRequest of_user = request;
    of_user.client = std::make_shared<const Client>(sharing);
    of_user.user = user;
    before.push_back(Submit(of_user).sink);
  }
  GenerationRequest of_other = request;
  of_other.client = client_b;
  before.push_back(Submit(of_other).sink);
  control->Resume();
  for (const Sink& sink : before) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
}

TEST_F(EngineFairnessTest, AStepThatStalledRefusesNoDeadlineOnAnIdleServer) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.max_step_tokens = 1000;
  StartHeld();
  const Sink stalled = Submit(Request({1}, 1)).sink;
  control->WaitUntilBlocked();
  clock.Advance(seconds(30));
  control->Resume();
  EXPECT_EQ(stalled->Wait().status, absl::OkStatus());
  const auto urgent = [&] {
    GenerationRequest request = Request(std::vector<TokenId>(500, 1), 1);
    request.deadline = clock.Now() + seconds(1);
    return request;
  };
  // It delays no other request, and its step corrects the first measurement.
  EXPECT_EQ(Submit(urgent()).sink->Wait().status, absl::OkStatus());
  control->Hold();
  const Sink running = Submit(Request({1}, 1)).sink;
  control->WaitUntilBlocked();
  const Sink beside = Submit(urgent()).sink;
  control->Resume();
  EXPECT_EQ(beside->Wait().status, absl::OkStatus());
}

TEST_F(EngineFairnessTest, ALongPromptKeepsToTheStepTargetAlongsideDecodes) {
  model.max_steps_in_flight = 1;  // the clock below counts submitted steps
  model.max_step_tokens = 64;
  options.scheduling.step_target = milliseconds(20);
  // A token of a prompt or a stream takes a millisecond.
  const auto tokens_of = [](const StepInput& step) {
    int64_t tokens = 0;
    for (const StepRow& row : step.rows) tokens += static_cast<int64_t>(row.tokens.size());
    return tokens;
  };
  options.clock = [&] {
    int64_t tokens = 0;
    for (const StepInput& step : control->steps()) tokens += tokens_of(step);
    return clock.Now() + milliseconds(tokens);
  };
  Start();
  const Accepted decoding = Submit(Request({1}, kEndless));
  decoding.sink->WaitForParts(3);
  EXPECT_EQ(Submit(Request(std::vector<TokenId>(1000, 1), 1)).sink->Wait().status,
            absl::OkStatus());
  engine->Cancel(decoding.handle);
  decoding.sink->Wait();
  EXPECT_EQ(Submit(Request(std::vector<TokenId>(1000, 1), 1)).sink->Wait().status,
            absl::OkStatus());
  std::vector<int64_t> beside;
  int64_t alone = 0;
  for (const StepInput& step : control->steps()) {
    if (step.rows.size() == 2) {
      beside.push_back(tokens_of(step));
    } else {
      alone = std::max(alone, tokens_of(step));
    }
  }
  ASSERT_GE(beside.size(), 10U);
  beside.pop_back();  // the rest of the prompt
  for (const int64_t tokens : beside) {
    EXPECT_LE(tokens, 20);
    EXPECT_GE(tokens, 12);
  }
  EXPECT_EQ(alone, 64);  // no stream waits for a token
}

TEST_F(EngineFairnessTest, EveryStreamIsRightUnderRandomClassesClientsAndCancels) {
  model.slots = 3;
  model.max_step_tokens = 16;
  options.limits.max_queued_requests = 1000;
  options.limits.max_queued_tokens = 100'000;
  ModelInfo info;
  info.vocab_size = model.vocab_size;
  options.model.parking_bytes = 2 * MaxSnapshotBytes(info);
  StartHeld();
  const Accepted endless = Submit(Batch(kEndless));  // so that there is always a next step
  control->WaitUntilBlocked();
  const std::shared_ptr<const Client> clients[] = {client_b, NamedClient("c"), NamedClient("d")};
  struct Open {
    GenerationRequest request;
    Accepted accepted;
    bool cancelled;
  };
  std::deque<Open> open;
  for (int i = 0; i < 300; ++i) {
    GenerationRequest request =
        Request(std::vector<TokenId>(static_cast<size_t>(1 + random.Below(40)), 3),
                static_cast<int32_t>(1 + random.Below(120)));
    request.client = clients[random.Below(3)];
    request.service_class = static_cast<ServiceClass>(random.Below(3));
    clock.Advance(milliseconds(random.Below(300)));
    const Accepted accepted = Submit(request);
    const bool cancel = random.Below(8) == 0;
    if (cancel) engine->Cancel(accepted.handle);
    open.push_back({request, accepted, cancel});
    control->RunSteps(1 + random.Below(20));
  }
  control->Resume();
  for (const Open& one : open) {
    const Outcome outcome = one.accepted.sink->Wait();
    const std::vector<TokenId> expected = Expected(one.request);
    const std::vector<TokenId> tokens = one.accepted.sink->tokens();
    if (!one.cancelled) {
      EXPECT_EQ(outcome.status, absl::OkStatus());
      EXPECT_EQ(tokens, expected);
    }
    ASSERT_LE(tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
  }
  engine->Cancel(endless.handle);
  endless.sink->Wait();
  EXPECT_EQ(engine->load().running, 0);
  engine.reset();
  EXPECT_GT(Count(metrics.parks), 0);
  EXPECT_EQ(metrics.requests_parked.Value(), 0);
}

}  // namespace
}  // namespace aft::server
