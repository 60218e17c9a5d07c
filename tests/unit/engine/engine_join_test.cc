// Prompts that begin alike and come at the same time: one reads, the others wait for it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/unit/scheduling/prefix_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;

class EngineJoinTest : public EnginePrefixTest {};

TEST_F(EngineJoinTest, TheBeginningOfPromptsThatArriveTogetherIsReadOnce) {
  model.slots = 8;
  StartHeld();
  const Tokens system = RandomText(500);
  std::vector<GenerationRequest> requests;
  std::vector<Accepted> accepted;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(Request(Joined(system, {i, i + 1, i + 2}), 5));
    accepted.push_back(Submit(requests.back()));
  }
  control->Resume();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(UsageOf(accepted[i], requests[i]).cached_tokens, i == 0 ? 0U : 500U) << i;
  }
  EXPECT_EQ(read(), 500 + 40 * 3);
  EXPECT_EQ(metrics.prefix_joins.Value(), 39);
  EXPECT_EQ(metrics.prefix_hits.Value(), 39);
}

TEST_F(EngineJoinTest, APromptThatArrivesWhileAnotherReadsWaitsForIt) {
  StartHeld();
  const Tokens system = RandomText(400);
  const GenerationRequest first = Request(Joined(system, {1}), 3);
  const Accepted leader = Submit(first);
  control->RunSteps(3);  // 192 tokens at most
  const GenerationRequest second = Request(Joined(system, {2}), 3);
  const Accepted joined = Submit(second);
  control->RunSteps(1);
  EXPECT_EQ(metrics.prefix_joins.Value(), 1);
  control->Resume();
  EXPECT_EQ(UsageOf(leader, first).cached_tokens, 0U);
  EXPECT_EQ(UsageOf(joined, second).cached_tokens, 400U);
  EXPECT_EQ(read(), 402);
}

TEST_F(EngineJoinTest, ALeaderDoesNotStopForWhatItHasJustRead) {
  for (const int64_t shared : {192, 256, 320}) {
    SCOPED_TRACE(shared);
    StartHeld();
    const GenerationRequest first = Request(RandomText(400), 3);
    const Accepted leader = Submit(first);
    control->RunSteps(3);  // 256 tokens are under way, or 320 with two steps in flight
    const auto begin = first.prompt.begin();
    const GenerationRequest second = Request(Joined({begin, begin + shared}, {300 % 256, 1}), 3);
    const Accepted other = Submit(second);
    control->Resume();
    ExpectServed(leader.sink, first);
    ExpectServed(other.sink, second);
    engine.reset();
  }
}

TEST_F(EngineJoinTest, NoPromptWaitsForAStateThatHasNoRoom) {
  options.model.prefix_cache_bytes = 100'000;
  model.state_bytes = 60'000;
  StartHeld();
  const Tokens system = RandomText(400);
  std::vector<GenerationRequest> requests;
  std::vector<Accepted> accepted;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(Request(Joined(system, {i}), 3));
    accepted.push_back(Submit(requests.back()));
  }
  control->Resume();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(UsageOf(accepted[i], requests[i]).cached_tokens, 0U);
  }
  EXPECT_EQ(metrics.prefix_joins.Value(), 0);
  EXPECT_EQ(metrics.prefix_states.Value(), 0);
}

TEST_F(EngineJoinTest, WhenALeaderEndsTheNextPromptReads) {
  StartHeld();
  const Tokens system = RandomText(400);
  std::vector<GenerationRequest> requests;
  std::vector<Accepted> accepted;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(Request(Joined(system, {i}), 3));
    accepted.push_back(Submit(requests.back()));
  }
  control->RunSteps(3);
  EXPECT_EQ(metrics.prefix_joins.Value(), 4);
  engine->Cancel(accepted[0].handle);
  control->RunSteps(3);
  engine->Cancel(accepted[1].handle);
  control->Resume();
  EXPECT_EQ(accepted[0].sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(accepted[1].sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(UsageOf(accepted[2], requests[2]).cache_miss, CacheMiss::kDiverged);
  for (size_t i = 3; i < 5; ++i) {
    EXPECT_EQ(UsageOf(accepted[i], requests[i]).cached_tokens, 400U) << i;
  }
}

TEST_F(EngineJoinTest, AFailedStepOfALeaderDoesNotEndWaitingPrompts) {
  StartHeld();
  const Tokens system = RandomText(400);
  const Accepted leader = Submit(Request(Joined(system, {0}), 3));
  const GenerationRequest request = Request(Joined(system, {1}), 3);
  const Accepted waits = Submit(request);
  control->RunSteps(2);
  control->FailNext(FakeCall::kCollect, absl::InternalError("boom"));
  control->Resume();
  EXPECT_EQ(leader.sink->Wait().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(UsageOf(waits, request).cached_tokens, 0U);
}

TEST_F(EngineJoinTest, AWaitingPromptMayBeCancelledAndItsDeadlineHolds) {
  StartHeld();
  const Tokens system = RandomText(400);
  const GenerationRequest first = Request(Joined(system, {0}), 3);
  const Accepted leader = Submit(first);
  control->RunSteps(1);
  const Accepted cancelled = Submit(Request(Joined(system, {1}), 3));
  GenerationRequest late = Request(Joined(system, {2}), 3);
  late.deadline = clock.Now() + milliseconds(5);
  const Accepted expires = Submit(late);
  const GenerationRequest third = Request(Joined(system, {3}), 3);
  const Accepted stays = Submit(third);
  control->RunSteps(1);
  EXPECT_EQ(metrics.prefix_joins.Value(), 3);
  engine->Cancel(cancelled.handle);
  clock.Advance(milliseconds(10));
  control->RunSteps(1);
  EXPECT_EQ(cancelled.sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(expires.sink->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  control->Resume();
  ExpectServed(leader.sink, first);
  EXPECT_EQ(UsageOf(stays, third).cached_tokens, 400U);
}

TEST_F(EngineJoinTest, AWaitingPromptEndsWithTheDrain) {
  StartHeld();
  const Tokens system = RandomText(400);
  const GenerationRequest first = Request(Joined(system, {0}), 3);
  const Accepted leader = Submit(first);
  control->RunSteps(1);
  const Accepted waits = Submit(Request(Joined(system, {1}), 3));
  control->RunSteps(1);
  engine->BeginDrain();
  control->Resume();
  EXPECT_EQ(waits.sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  ExpectServed(leader.sink, first);
}

class EngineLentClassTest : public EngineJoinTest {
 protected:
  // There is one slot. A batch prompt is being read, and an interactive one that begins alike
  // waits.
  void StartWithABatchLeader(int32_t outputs) {
    model.slots = 1;
    StartHeld();
    const Tokens system = RandomText(400);
    slow_ = Request(Joined(system, {0}), outputs);
    slow_.service_class = ServiceClass::kBatch;
    leader_ = Submit(slow_);
    control->RunSteps(1);
    urgent_ = Request(Joined(system, {1}), 3);
    urgent_.service_class = ServiceClass::kInteractive;
    waits_ = Submit(urgent_);
  }

  GenerationRequest slow_;
  GenerationRequest urgent_;
  Accepted leader_;
  Accepted waits_;
};

// A batch prompt is not parked while an interactive one waits for its state.
TEST_F(EngineLentClassTest, ALeaderHasItsOwnClassAgainOnceItsStateIsKept) {
  StartWithABatchLeader(100);
  control->RunSteps(3);
  EXPECT_EQ(metrics.parks.Value(), 0);  // it reads for the other one
  control->Resume();
  ExpectServed(waits_.sink, urgent_);
  EXPECT_EQ(metrics.parks.Value(), 1);  // then it is parked for it
  ExpectServed(leader_.sink, slow_);
}

TEST_F(EngineLentClassTest, ALeaderHasItsOwnClassAgainOnceNothingWaitsForIt) {
  StartWithABatchLeader(100);
  control->RunSteps(1);
  EXPECT_EQ(metrics.prefix_joins.Value(), 1);
  engine->Cancel(waits_.handle);
  GenerationRequest other = Request(RandomText(5), 1);
  other.service_class = ServiceClass::kInteractive;
  const Accepted third = Submit(other);
  control->RunSteps(4);  // it would take the leader more steps to come to the state
  EXPECT_TRUE(third.sink->finished());
  EXPECT_EQ(metrics.parks.Value(), 1);
  control->Resume();
  ExpectServed(third.sink, other);
  ExpectServed(leader_.sink, slow_);
}

TEST_F(EngineLentClassTest, ALeaderHasTheBestClassOfThoseThatWait) {
  StartWithABatchLeader(3);
  GenerationRequest other = Request(RandomText(40), 3);
  other.service_class = ServiceClass::kNormal;
  const Accepted third = Submit(other);
  control->Resume();
  EXPECT_EQ(UsageOf(waits_, urgent_).cached_tokens, 400U);
  ExpectServed(leader_.sink, slow_);
  ExpectServed(third.sink, other);
}

// A deadline is refused if the queue was measured to move too slowly. Prompts that have joined
// another one do not hold the queue up.
class EngineJoinTurnTest : public EngineJoinTest {
 protected:
  static constexpr int32_t kForever = 1'000'000;

  // One slot has a long prompt, and a prompt that came together with it has joined it. The other
  // slots suffice for this number of answers to the second prompt.
  void StartWithAJoinedPrompt(int32_t answers = 1) {
    model.max_steps_in_flight = 1;  // the tests count steps
    model.slots = 1 + answers;
    StartHeld();
    Submit(Request({1}, 1));
    control->WaitUntilBlocked();
    const Tokens system = RandomText(400);
    Submit(Request(Joined(system, {0}), kForever));
    joined_ = SubmitGroup(Request(Joined(system, {1}), kForever), static_cast<size_t>(answers));
    control->RunSteps(1);
    EXPECT_EQ(metrics.prefix_joins.Value(), 1);
  }
  // A request that must be read soon, though another one waits before it. REQUIRES: no slot is
  // free.
  GenerationRequest Urgent() {
    Submit(Request({1}, 1));
    GenerationRequest request = Request({1}, 1);
    request.deadline = clock.Now() + std::chrono::seconds(2);
    return request;
  }

  Group joined_;
};

TEST_F(EngineJoinTurnTest, TheWaitForALeaderDoesNotCountAsTheWaitForASlot) {
  StartWithAJoinedPrompt();
  clock.Advance(std::chrono::seconds(10));
  control->Resume();
  joined_.sinks.front()->WaitForParts(1);
  Submit(Urgent());  // it is accepted
}

TEST_F(EngineJoinTurnTest, TheWaitOfAGroupForALeaderDoesNotCountEither) {
  StartWithAJoinedPrompt(/*answers=*/2);
  clock.Advance(std::chrono::seconds(10));
  control->Resume();
  joined_.sinks.front()->WaitForParts(1);
  Submit(Urgent());  // it is accepted
}

TEST_F(EngineJoinTurnTest, APromptThatHasJoinedAnotherDoesNotGoBeforeARequest) {
  StartWithAJoinedPrompt();
  Submit(Request({1}, 1));
  Submit(Request({1}, 1));
  control->RunSteps(1);  // the first has begun while the second waits
  clock.Advance(std::chrono::seconds(10));
  control->RunSteps(1);  // the second has begun
  GenerationRequest request = Request({1}, 1);
  request.deadline = clock.Now() + std::chrono::seconds(2);
  const Sink in_time = Submit(request).sink;
  control->RunSteps(2);
  EXPECT_TRUE(in_time->finished());  // the leader reads on
}

TEST_F(EngineJoinTurnTest, APromptThatEndsWhileItIsJoinedDoesNotHideThatOthersWait) {
  StartWithAJoinedPrompt();
  engine->Cancel(joined_.handle);
  Submit(Request({1}, 1));
  const Sink second = Submit(Request({1}, kForever)).sink;
  control->RunSteps(1);  // the first has begun while the second waits
  clock.Advance(std::chrono::seconds(10));
  control->Resume();
  second->WaitForParts(1);
  EXPECT_THAT(Refused(Urgent()), StatusIs(absl::StatusCode::kResourceExhausted,
                                          ::testing::HasSubstr("the deadline cannot be met")));
}

TEST_F(EngineJoinTest, EqualPromptsOfACallCountOnceForItsDeadline) {
  model.max_steps_in_flight = 1;  // the test counts steps
  StartHeld();
  const Sink first = Submit(Request(RandomText(10), 1)).sink;
  control->WaitUntilBlocked();
  clock.Advance(std::chrono::seconds(10));  // a second for each token
  control->Resume();
  EXPECT_EQ(first->Wait().status, absl::OkStatus());
  control->Hold();
  GenerationRequest other = Request({1}, 1);
  other.client = client_b;
  const Sink running = Submit(other).sink;
  control->WaitUntilBlocked();
  std::vector<GenerationRequest> equal(4, Request(RandomText(100), 2));
  std::vector<GenerationRequest> different;
  for (int i = 0; i < 4; ++i) different.push_back(Request(RandomText(100), 2));
  for (auto* const requests : {&equal, &different}) {
    for (GenerationRequest& one : *requests) one.deadline = clock.Now() + std::chrono::seconds(100);
  }
  // The estimate assumes half of the measured time: 200 s for four prompts, and 50 s for one.
  const std::vector<Sink> sinks = Sinks(4);
  EXPECT_EQ(engine->GenerateTexts(different, {sinks.begin(), sinks.end()}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine->GenerateTexts(equal, {sinks.begin(), sinks.end()}).status(), absl::OkStatus());
  control->Resume();
  for (const Sink& sink : sinks) ExpectServed(sink, equal.front());
  EXPECT_EQ(running->Wait().status, absl::OkStatus());
}

class EngineGroupJoinTest : public EngineJoinTest {
 protected:
  // Returns the usage of the first.
  Usage ExpectGroup(const Group& group, GenerationRequest request) {
    for (const Sink& sink : group.sinks) {
      ExpectServed(sink, request);
      ++request.sampling.seed;
    }
    return group.sinks.front()->Wait().usage;
  }
};

TEST_F(EngineGroupJoinTest, AGroupContinuesFromAStateAndLeavesStates) {
  Start();
  const Tokens system = RandomText(200);
  for (const uint32_t cached : {0U, 0U, 200U}) {
    GenerationRequest request = Request(Joined(system, RandomText(5)), 6);
    request.sampling.repetition_penalty = 1.5F;
    EXPECT_EQ(ExpectGroup(SubmitGroup(request, 3), request).cached_tokens, cached);
  }
  // With the same prompt again, a group always reads one token before the fork.
  const GenerationRequest request = Request(RandomText(100), 6);
  for (const uint32_t cached : {0U, 98U, 98U}) {
    EXPECT_EQ(ExpectGroup(SubmitGroup(request, 3), request).cached_tokens, cached);
    if (cached == 0) Serve({request.prompt.begin(), request.prompt.begin() + 99});
  }
}

TEST_F(EngineGroupJoinTest, AStateThatIsLostEndsItsGroupAlone) {
  Start();
  const GenerationRequest request = Request(RandomText(100), 6);
  for (int i = 0; i < 2; ++i) Serve(request.prompt);
  // There is a state before the last token, but it would leave a group nothing to read.
  EXPECT_EQ(ExpectGroup(SubmitGroup(request, 3), request).cached_tokens, 0U);
  EXPECT_EQ(ExpectGroup(SubmitGroup(request, 3), request).cached_tokens, 98U);
  control->FailNext(FakeCall::kRestore);
  for (const Sink& sink : SubmitGroup(request, 3).sinks) EXPECT_FALSE(sink->Wait().status.ok());
  EXPECT_EQ(ExpectGroup(SubmitGroup(request, 3), request).cached_tokens, 98U);
}

TEST_F(EngineGroupJoinTest, AGroupWaitsForTheStateOfAnotherGroup) {
  model.slots = 6;
  StartHeld();
  const Tokens system = RandomText(400);
  const GenerationRequest first = Request(Joined(system, {1, 2}), 4);
  const GenerationRequest second = Request(Joined(system, {3, 4}), 4);
  const Group leaders = SubmitGroup(first, 3);
  const Group waits = SubmitGroup(second, 3);
  control->Resume();
  EXPECT_EQ(ExpectGroup(leaders, first).cached_tokens, 0U);
  EXPECT_EQ(ExpectGroup(waits, second).cached_tokens, 400U);
  EXPECT_EQ(metrics.prefix_joins.Value(), 1);
  EXPECT_EQ(read(), 400 + 2 * (2 + 2));  // each follower reads its last token
}

TEST_F(EngineGroupJoinTest, AGroupThatWaitsMayBeCancelled) {
  model.slots = 6;
  StartHeld();
  const Tokens system = RandomText(400);
  const GenerationRequest first = Request(Joined(system, {1, 2}), 4);
  const Group leaders = SubmitGroup(first, 3);
  const Group waits = SubmitGroup(Request(Joined(system, {3, 4}), 4), 3);
  control->RunSteps(3);
  EXPECT_EQ(metrics.prefix_joins.Value(), 1);
  engine->Cancel(waits.handle, 3);
  control->Resume();
  EXPECT_THAT(waits.Codes(), ::testing::Each(absl::StatusCode::kCancelled));
  ExpectGroup(leaders, first);
}

// Prompts that share beginnings are cut, joined, parked, cancelled and forgotten at random, with
// and without room for their states. Every answer is that of the prompt alone, and the reported use
// of the cache is consistent.
TEST_F(EngineJoinTest, EveryAnswerIsThatOfThePromptAlone) {
  for (const int64_t bytes : {int64_t{1} << 26, int64_t{60'000}, int64_t{30'000}}) {
    SCOPED_TRACE(bytes);
    control = std::make_shared<FakeModelControl>();
    control->DropInputs();
    model.slots = 3;
    model.max_step_tokens = 24;
    options.model.prefix_cache_bytes = bytes;
    options.model.prefix_cache_interval_tokens = 64;
    StartHeld();
    const double hits_before = metrics.prefix_hits.Value();
    const Accepted endless = Submit(Request({0}, 1'000'000));  // so that there is a next step
    std::vector<Tokens> texts = {RandomText(400), RandomText(300)};
    int64_t cancelled = 0;
    for (int round = 0; round < 150; ++round) {
      SCOPED_TRACE(round);
      control->Hold();
      std::vector<GenerationRequest> requests;
      std::vector<Accepted> accepted;
      const bool alike = random.Below(2) == 0;  // they share a beginning that is new
      if (alike) texts.push_back(RandomText(500));
      for (int i = 0; i < 6; ++i) {
        if (random.Below(3) == 0) control->RunSteps(1 + random.Below(4));
        const int64_t which = random.Below(static_cast<int64_t>(texts.size()));
        Tokens text = alike ? texts.back() : texts[static_cast<size_t>(which)];
        if (!alike && random.Below(2) == 0) {
          text.resize(static_cast<size_t>(1 + random.Below(static_cast<int64_t>(text.size()))));
        }
        text = Joined(text, RandomText(random.Below(40)));
        GenerationRequest request = Request(text, static_cast<int32_t>(1 + random.Below(50)));
        request.service_class = static_cast<ServiceClass>(random.Below(3));
        if (random.Below(4) == 0) request.client = client_b;
        if (random.Below(6) == 0) request.cache_salt = "salt";
        if (random.Below(3) == 0) request.sampling.repetition_penalty = 1.5F;
        if (random.Below(3) == 0) request.sampling.frequency_penalty = 0.5F;
        if (random.Below(2) == 0) request.sampling.penalty_decay = 0.9F;
        if (random.Below(4) == 0) request.store = true;
        requests.push_back(request);
        accepted.push_back(Submit(request));
        if (random.Below(8) == 0) {
          engine->Cancel(
              accepted[static_cast<size_t>(random.Below(static_cast<int64_t>(accepted.size())))]
                  .handle);
        }
        if (alike) continue;
        texts.push_back(random.Below(2) == 0 ? text : Joined(text, Expected(request)));
        if (texts.back().size() > 600) texts.back().resize(600);
        if (texts.size() > 20) texts.erase(texts.begin() + 2);
      }
      control->Resume();
      for (size_t i = 0; i < accepted.size(); ++i) {
        SCOPED_TRACE(i);
        const Outcome outcome = accepted[i].sink->Wait();
        if (outcome.status.code() == absl::StatusCode::kCancelled) {
          ++cancelled;
          continue;
        }
        ASSERT_EQ(outcome.status, absl::OkStatus());
        ASSERT_EQ(accepted[i].sink->tokens(), Expected(requests[i]));
        const Usage& usage = outcome.usage;
        const size_t length = requests[i].prompt.size();
        ASSERT_EQ(usage.cached_tokens == 0, usage.cache_miss != CacheMiss::kNone);
        ASSERT_TRUE(usage.cached_tokens == 0 ||
                    (usage.cached_tokens >= 32 && usage.cached_tokens < length));
        ASSERT_EQ(usage.cache_miss == CacheMiss::kTooShort, length <= 32);
        ASSERT_EQ(usage.cache_miss == CacheMiss::kDiverged, usage.diverged_at > 0);
        ASSERT_TRUE(usage.diverged_at == 0 ||
                    (usage.diverged_at >= 32 && usage.diverged_at <= length));
        if (bytes == int64_t{1} << 26) {
          ASSERT_NE(usage.cache_miss, CacheMiss::kEvicted);
        }
        if (requests[i].store) {
          ASSERT_EQ(StateOf(outcome)->history,
                    HistoryOf(HistoryOf(0, requests[i].prompt), accepted[i].sink->tokens()));
        }
      }
      ASSERT_LE(metrics.prefix_bytes.Value(), static_cast<double>(bytes));
    }
    engine->Cancel(endless.handle);
    engine.reset();
    EXPECT_THAT(control->violations(), ::testing::IsEmpty());
    EXPECT_GT(cancelled, 10);
    EXPECT_GT(metrics.prefix_hits.Value() - hits_before, bytes > 60'000 ? 200 : 20);
  }
  EXPECT_GT(metrics.prefix_joins.Value(), 200);
  EXPECT_GT(metrics.prefix_evictions.Value(), 20);
  EXPECT_GT(metrics.parks.Value(), 10);
}

}  // namespace
}  // namespace aft::server
