// Several answers to one prompt, through the engine.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/scheduling/random_rules.h"

namespace aft::server {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int32_t kManyOutputs = 1 << 30;

class EngineGroupTest : public EngineTest {
 protected:
  absl::Status RefusedGroup(const GenerationRequest& request, size_t count) {
    const std::vector<Sink> sinks = Sinks(count);
    const absl::Status status =
        engine->GenerateGroup(request, {sinks.begin(), sinks.end()}).status();
    EXPECT_FALSE(status.ok());
    for (const Sink& sink : sinks) EXPECT_FALSE(sink->finished());
    return status;
  }

  // A single request for answer `i` of the group.
  static GenerationRequest Single(GenerationRequest request, size_t i) {
    request.sampling.seed += i;
    return request;
  }
};

TEST_F(EngineGroupTest, SeedsWrapAround) {
  Start();
  GenerationRequest request = Request({1, 2}, 5);
  request.sampling.seed = ~uint64_t{0};
  const Group group = SubmitGroup(request, 2);
  group.sinks[1]->Wait();
  request.sampling.seed = 0;
  EXPECT_EQ(group.sinks[1]->tokens(), Expected(request));
}

TEST_F(EngineGroupTest, RefusesMoreAnswersThanAStrictQuotaAllows) {
  options.scheduling.strict_quotas = true;
  options.scheduling.max_client_slots = 2;
  Start();
  EXPECT_THAT(RefusedGroup(Request({1}, 1), 3),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("n: must be at most 2")));
  Client client;
  EXPECT_TRUE(engine->CheckGroup(client, ServiceClass::kNormal, 2).ok());
  EXPECT_FALSE(engine->CheckGroup(client, ServiceClass::kNormal, 3).ok());
  client.max_slots = 3;
  EXPECT_TRUE(engine->CheckGroup(client, ServiceClass::kNormal, 3).ok());
  EXPECT_FALSE(engine->CheckGroup(client, ServiceClass::kNormal, 4).ok());
}

TEST_F(EngineGroupTest, TakesAPlaceForEachAnswerOrNone) {
  model.slots = 3;
  options.limits.max_queued_requests = 4;
  options.limits.max_queued_tokens = 10;
  StartHeld();
  const GenerationRequest running = Request({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 2);
  const Group first = SubmitGroup(running, 3);  // has free slots: its length does not matter
  const Group second = SubmitGroup(Request({1, 2, 3, 4, 5, 6}, 1), 2);  // two of four places
  const GenerationRequest more = Request({1}, 1);
  const auto place = *engine->Reserve(*client_b);
  GenerationRequest other = more;
  other.client = client_b;
  other.reservation = place;
  EXPECT_THAT(RefusedGroup(other, 3),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_requests=4")));
  EXPECT_THAT(RefusedGroup(more, 1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the client's part")));
  EXPECT_EQ(engine->load().waiting, 2);  // the reserved place was given back
  other.reservation = nullptr;
  const Group third = SubmitGroup(other, 2);
  EXPECT_EQ(engine->load().waiting, 4);
  control->Resume();
  for (const Group& group : {first, second, third}) {
    EXPECT_THAT(group.Codes(), Each(absl::StatusCode::kOk));
  }
  EXPECT_EQ(engine->load().waiting + engine->load().running, 0);
  EXPECT_EQ(metrics.requests_waiting.Value(), 0);
}

TEST_F(EngineGroupTest, AnAnswerThatEndsEarlyFreesItsSlotAtOnce) {
  model.slots = 2;
  StartHeld();
  GenerationRequest request = Request({3, 4}, kManyOutputs);
  const std::vector<Sink> sinks = {std::make_shared<RecordingSink>(/*accept=*/3),
                                   std::make_shared<RecordingSink>()};
  const Group group = SubmitGroup(request, sinks);
  const GenerationRequest next = Request({5}, 3);
  const Accepted waiting = Submit(next);
  control->Resume();
  EXPECT_EQ(group.sinks[0]->Wait().status.code(), absl::StatusCode::kResourceExhausted);
  ExpectServed(waiting.sink, next);
  EXPECT_FALSE(group.sinks[1]->finished());
  engine->Cancel(group.handle + 1);
  EXPECT_EQ(group.sinks[1]->Wait().status.code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineGroupTest, EachAnswerHasItsOwnReason) {
  Start();
  GenerationRequest request = Request({3, 4, 5}, 30);
  const std::vector<TokenId> second = Expected(Single(request, 1));
  request.stop.token_ids = {second[6]};
  const Group group = SubmitGroup(request, 2);
  const Outcome stopped = group.sinks[1]->Wait();
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  EXPECT_LE(stopped.usage.generated_tokens, 6U);
  const Outcome other = group.sinks[0]->Wait();
  EXPECT_NE(other.usage.generated_tokens, stopped.usage.generated_tokens);
}

TEST_F(EngineGroupTest, BeforeTheForkTheEndOfTheFirstAnswerEndsAll) {
  model.max_step_tokens = 8;
  StartHeld();
  const GenerationRequest request = Request(std::vector<TokenId>(100, 3), 5);
  const Group group = SubmitGroup(request, 3);
  control->RunSteps(2);
  engine->Cancel(group.handle);
  control->Resume();
  EXPECT_THAT(group.Codes(), ElementsAre(absl::StatusCode::kCancelled, absl::StatusCode::kAborted,
                                         absl::StatusCode::kAborted));
  for (const Sink& sink : group.sinks) EXPECT_THAT(sink->tokens(), IsEmpty());
  ExpectServes();
  EXPECT_EQ(engine->load().running, 0);
}

TEST_F(EngineGroupTest, BeforeTheForkTheEndOfAnotherAnswerEndsOnlyThatOne) {
  model.max_step_tokens = 8;
  StartHeld();
  const GenerationRequest request = Request(std::vector<TokenId>(100, 3), 5);
  const Group group = SubmitGroup(request, 3);
  control->RunSteps(2);
  engine->Cancel(group.handle + 1);
  control->Resume();
  EXPECT_THAT(group.Codes(), ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kCancelled,
                                         absl::StatusCode::kOk));
  ExpectServed(group.sinks[0], Single(request, 0));
  ExpectServed(group.sinks[2], Single(request, 2));
}

TEST_F(EngineGroupTest, AGroupMayBeCancelledWhileItWaits) {
  model.slots = 2;
  StartHeld();
  const Accepted endless = Submit(Request({1}, kManyOutputs));
  const GenerationRequest request = Request({3, 4}, 3);
  const Group group = SubmitGroup(request, 2);
  engine->Cancel(group.handle, 2);
  control->RunSteps(3);
  EXPECT_THAT(group.Codes(), Each(absl::StatusCode::kCancelled));
  EXPECT_EQ(metrics.finished(Ending::kCancelled).Value(), 2);
  engine->Cancel(endless.handle);
  control->Resume();
  ExpectServes();
}

TEST_F(EngineGroupTest, AFailedStepEndsTheGroupThatIsInIt) {
  model.max_step_tokens = 8;
  options.health.max_failed_steps = 100;
  StartHeld();
  const Group reading = SubmitGroup(Request(std::vector<TokenId>(100, 3), 5), 3);
  control->RunSteps(1);
  control->FailNext(FakeCall::kCollect, absl::InternalError("a step"));
  control->Resume();
  EXPECT_THAT(reading.Codes(), ElementsAre(absl::StatusCode::kInternal, absl::StatusCode::kAborted,
                                           absl::StatusCode::kAborted));
  EXPECT_EQ(metrics.finished(Ending::kError).Value(), 3);
  const GenerationRequest request = Request({1, 2, 3}, kManyOutputs);
  control->Hold();
  const Group forked = SubmitGroup(request, 3);
  control->RunSteps(8);
  control->FailNext(FakeCall::kSubmit, absl::InternalError("a step"));
  control->Resume();
  EXPECT_THAT(forked.Codes(), Each(absl::StatusCode::kInternal));
  ExpectServes();
}

TEST_F(EngineGroupTest, ALostStateEndsTheGroupBeforeItHasBegun) {
  Start();
  GenerationRequest first = Request({1, 2, 3}, 3);
  first.store = true;
  const auto state = StateOf(Submit(first).sink->Wait());
  for (const std::vector<TokenId>& prompt : std::vector<std::vector<TokenId>>{{}, {4, 5, 6}}) {
    GenerationRequest request = Request(prompt, 5);
    request.previous = state;
    control->FailNext(FakeCall::kRestore);
    const Group group = SubmitGroup(request, 3);
    EXPECT_THAT(group.Codes(), ElementsAre(absl::StatusCode::kInternal, absl::StatusCode::kAborted,
                                           absl::StatusCode::kAborted));
  }
  ExpectServes();
}

// The other answers end because the first one has failed, for whatever reason.
TEST_F(EngineGroupTest, OnlyTheAnswerThatIsNotReadEndsBecauseOfASlowClient) {
  Start();
  GenerationRequest request = Request({4, 5, 6}, 5);
  request.prompt_scores = true;
  std::vector<Sink> sinks = Sinks(3);
  sinks[0] = std::make_shared<RecordingSink>(/*accept=*/0);
  EXPECT_THAT(SubmitGroup(request, sinks).Codes(),
              ElementsAre(absl::StatusCode::kResourceExhausted, absl::StatusCode::kAborted,
                          absl::StatusCode::kAborted));
  EXPECT_EQ(metrics.finished(Ending::kSlowClient).Value(), 1);
  EXPECT_EQ(metrics.finished(Ending::kError).Value(), 2);
}

// None of their clients reads too slowly.
TEST_F(EngineGroupTest, WithoutMemoryForItsStateAGroupEndsByAnErrorOfTheServer) {
  Start();
  GenerationRequest first = Request({1, 2, 3}, 3);
  first.store = true;
  GenerationRequest request = Request({4, 5, 6}, 5);
  request.previous = StateOf(Submit(first).sink->Wait());
  control->FailNext(FakeCall::kRestore, absl::ResourceExhaustedError("none"));
  EXPECT_THAT(SubmitGroup(request, 3).Codes(),
              ElementsAre(absl::StatusCode::kResourceExhausted, absl::StatusCode::kAborted,
                          absl::StatusCode::kAborted));
  EXPECT_EQ(metrics.finished(Ending::kError).Value(), 3);
}

// Followers of a prompt of one token begin and end in one placement. Each leaves the queue once.
TEST_F(EngineGroupTest, ALostStateEndsAGroupThatHasNothingToRead) {
  Start();
  GenerationRequest first = Request({1, 2, 3}, 3);
  first.store = true;
  GenerationRequest request = Request({}, 5);
  request.previous = StateOf(Submit(first).sink->Wait());
  const auto left = [&] {
    return metrics.queue_seconds(request.method, request.service_class)
        .Collect()
        .histogram.sample_count;
  };
  const uint64_t before = left();
  control->FailNext(FakeCall::kRestore);
  EXPECT_THAT(SubmitGroup(request, 3).Codes(), Not(Contains(absl::StatusCode::kOk)));
  EXPECT_EQ(left(), before + 3);
}

TEST_F(EngineGroupTest, AForkThatFailsEndsItsAnswerAlone) {
  Start();
  const GenerationRequest request = Request({1, 2, 3}, 5);
  control->FailNext(FakeCall::kRestore);
  const Group group = SubmitGroup(request, 3);
  EXPECT_THAT(group.sinks[1]->Wait().status,
              StatusIs(absl::StatusCode::kInternal, Not(HasSubstr("secret"))));
  ExpectServed(group.sinks[0], Single(request, 0));
  ExpectServed(group.sinks[2], Single(request, 2));
}

TEST_F(EngineGroupTest, DeadlineDrainAndFailureEndTheWholeGroup) {
  model.slots = 2;
  StartHeld();
  const GenerationRequest endless = Request({1, 2}, kManyOutputs);
  const Group running = SubmitGroup(endless, 2);
  control->RunSteps(4);
  GenerationRequest late = Request({1, 2}, 5);
  late.deadline = clock.Now() + seconds(1);
  const Group expired = SubmitGroup(late, 2);
  clock.Advance(seconds(2));
  control->RunSteps(2);
  EXPECT_THAT(expired.Codes(), Each(absl::StatusCode::kDeadlineExceeded));
  const Group queued = SubmitGroup(Request({1, 2}, 5), 2);
  engine->BeginDrain();
  control->RunSteps(2);
  EXPECT_THAT(queued.Codes(), Each(absl::StatusCode::kUnavailable));
  control->FailNext(FakeCall::kSubmit, absl::UnavailableError("lost"));
  control->Resume();
  EXPECT_THAT(running.Codes(), Each(absl::StatusCode::kUnavailable));
}

TEST_F(EngineGroupTest, ATokenThatIsNotFiniteEndsItsAnswerAlone) {
  model.not_finite = [](uint64_t seed, uint64_t index) { return seed == 8 && index == 3; };
  Start();
  GenerationRequest request = Request({1, 2, 3}, 10);
  request.sampling.seed = 7;
  const Group group = SubmitGroup(request, 3);
  EXPECT_THAT(group.Codes(), ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kInternal,
                                         absl::StatusCode::kOk));
  EXPECT_THAT(group.sinks[1]->tokens(), SizeIs(3));
  ExpectServed(group.sinks[2], Single(request, 2));
}

// Groups and single requests have all classes and clients, states, penalties and stop tokens. Some
// are cancelled. Each answer is that of a single request, to the last bit of its state.
TEST_F(EngineGroupTest, UnderRandomNeighboursEachAnswerIsThatOfASingleRequest) {
  model.slots = 5;
  model.max_step_tokens = 16;
  options.limits.max_queued_requests = 1000;
  options.limits.max_queued_tokens = 100'000;
  StartHeld();
  const Accepted endless =
      Submit(Request({0}, kManyOutputs));  // so that there is always a next step
  std::vector<State> states = {nullptr};
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    struct One {
      GenerationRequest request;
      Group group;
      bool cancelled = false;
    };
    std::vector<One> all;
    control->Hold();
    for (int i = 0; i < 5; ++i) {
      if (i > 1) control->RunSteps(1 + random.Below(3));
      const size_t from = static_cast<size_t>(random.Below(static_cast<int64_t>(states.size())));
      const bool may_be_empty = states[from] != nullptr && states[from]->pending != kNoToken;
      const std::vector<TokenId> prompt = RandomText((may_be_empty ? 0 : 1) + random.Below(30));
      GenerationRequest request = Request(prompt, static_cast<int32_t>(1 + random.Below(20)));
      request.previous = states[from];
      request.store = true;
      RandomOwner(request);
      if (random.Below(2) == 0) request.sampling.repetition_penalty = 1.5F;
      if (random.Below(2) == 0) request.sampling.presence_penalty = 0.5F;
      if (random.Below(2) == 0) request.sampling.penalty_decay = 0.9F;
      request.stop.token_ids = RandomText(random.Below(2) * 15);
      if (random.Below(2) == 0) {
        request.sampling.rules = RandomRules(random, model.vocab_size, request.stop.token_ids);
        request.stop.min_tokens = static_cast<int32_t>(random.Below(request.stop.max_tokens + 1));
      }
      const Group group = SubmitGroup(request, static_cast<size_t>(1 + random.Below(4)));
      all.push_back({request, group});
      if (random.Below(6) != 0) continue;
      all.back().cancelled = true;
      const auto size = static_cast<int64_t>(group.sinks.size());
      engine->Cancel(group.handle + static_cast<RequestHandle>(random.Below(size)));
    }
    control->Resume();
    for (const One& one : all) {
      for (size_t i = 0; i < one.group.sinks.size(); ++i) {
        SCOPED_TRACE(i);
        const Outcome outcome = one.group.sinks[i]->Wait();
        if (one.cancelled && !outcome.status.ok()) continue;
        ASSERT_EQ(outcome.status, absl::OkStatus());
        const Accepted single = Submit(Single(one.request, i));
        const auto state = StateOf(single.sink->Wait());
        ASSERT_EQ(one.group.sinks[i]->tokens(), single.sink->tokens());
        ExpectSameState(*StateOf(outcome), *state);
        if (state->tokens < 500) states.push_back(state);
      }
    }
  }
  engine->Cancel(endless.handle);
  EXPECT_GT(metrics.parks.Value(), 0);
}

}  // namespace
}  // namespace aft::server
