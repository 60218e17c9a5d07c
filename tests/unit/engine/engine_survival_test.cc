// Streams that outlive their server: the states that they leave, and how they continue.

#include "tests/support/kept_bytes.h"
#include "tests/support/short_memory.h"
#include "tests/unit/engine/engine_resume_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using EngineSurvivalTest = EngineResumeTest;

TEST_F(EngineSurvivalTest, FromAnyResumePointAStreamContinuesAndReadsOnlyWhatCameAfter) {
  model.max_step_tokens = 16;
  Start();
  std::vector<State> states = {nullptr};
  size_t seen = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    GenerationRequest request = RandomRequest(
        states[static_cast<size_t>(random.Below(static_cast<int64_t>(states.size())))]);
    RandomStops(Run(request).tokens, request);
    GenerationRequest survives = request;
    const auto recorder = std::make_shared<ResumePointRecorder>();
    survives.survival = {.resumable = true, .sink = recorder, .interval = 1 + random.Below(12)};
    const Answer whole = Run(survives);
    if (whole.outcome.turn != nullptr) states.push_back(StateOf(whole.outcome));
    std::vector<TokenId> outputs;
    for (const ResumePoint& point : recorder->points()) {
      ++seen;
      outputs.insert(outputs.end(), point.outputs.begin(), point.outputs.end());
      ASSERT_LE(outputs.size(), whole.tokens.size());
      ASSERT_TRUE(std::equal(outputs.begin(), outputs.end(), whole.tokens.begin()));
      const size_t more = whole.tokens.size() - outputs.size();
      const size_t cut =
          outputs.size() + static_cast<size_t>(random.Below(static_cast<int64_t>(more) + 1));
      GenerationRequest resumed = Resumed(request, whole.tokens, cut);
      resumed.start = StateOf(request, point, outputs);
      ASSERT_TRUE(IsWithin(*resumed.start, resumed, info()));
      const double read = metrics.prompt_tokens.Value();
      const Answer rest = RunAlone(resumed);
      ExpectGoesOn(rest, whole, cut);
      const double reads = metrics.prompt_tokens.Value() - read;
      EXPECT_LE(reads, static_cast<double>(cut - outputs.size() + 1));
      if (cut == whole.tokens.size()) continue;  // if it has ended, nothing is read
      EXPECT_EQ(rest.outcome.usage.cached_tokens + reads,
                static_cast<double>(request.prompt.size() + cut));
    }
  }
  EXPECT_GT(seen, 50U);
}

TEST_F(EngineSurvivalTest, ResumePointsAreAsFarApartAsTheIntervalOfTokens) {
  Start();
  GenerationRequest request = Request(RandomText(30), 60);
  const auto recorder = std::make_shared<ResumePointRecorder>();
  request.survival = {.resumable = true, .sink = recorder, .interval = 10};
  Run(request);
  const std::vector<ResumePoint> points = recorder->points();
  // The prompt is longer than an interval, so a point is due at once. With two steps in flight it
  // comes a token later.
  const size_t late = model.max_steps_in_flight == 2 ? 1 : 0;
  ASSERT_GE(points.size(), 5U);
  EXPECT_EQ(points[0].outputs.size(), 1 + late);
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_EQ(points[i].outputs.size(), 10U) << i;
  }
}

TEST_F(EngineSurvivalTest, AStepBringsOneResumePointThoughSeveralAreDue) {
  StartHeld();
  std::vector<std::shared_ptr<ResumePointRecorder>> recorders;
  for (int i = 0; i < 3; ++i) {
    recorders.push_back(std::make_shared<ResumePointRecorder>());
    GenerationRequest request = Request({1, 2, 3}, 1000);
    request.survival = {.resumable = true, .sink = recorders.back(), .interval = 6};
    Submit(request);
  }
  size_t before = 0;
  for (int step = 0; step < 60; ++step) {
    control->RunSteps(1);
    size_t points = 0;
    for (const auto& recorder : recorders) points += recorder->points().size();
    EXPECT_LE(points, before + 1) << step;
    before = points;
  }
  for (const auto& recorder : recorders) EXPECT_GE(recorder->points().size(), 5U);
}

TEST_F(EngineSurvivalTest, AResumePointThatIsNotWantedIsLeftOutButNotItsTokens) {
  Start();
  GenerationRequest request = Request({1}, 40);
  const auto recorder = std::make_shared<ResumePointRecorder>();
  recorder->SetReady(false);
  request.survival = {.resumable = true, .sink = recorder, .interval = 8};
  const Answer whole = Run(request);
  EXPECT_THAT(recorder->points(), IsEmpty());
  EXPECT_GE(recorder->asked(), 3);
  EXPECT_LE(recorder->asked(), 5);
  EXPECT_EQ(whole.tokens, Expected(request));
  // A snapshot that fails does no harm either.
  recorder->SetReady(true);
  control->FailNext(FakeCall::kKeep);
  EXPECT_EQ(Run(request).tokens, whole.tokens);
  ASSERT_GE(recorder->points().size(), 2U);
  EXPECT_GE(recorder->points().front().outputs.size(), 16U);
}

TEST_F(EngineSurvivalTest, OnlyAStateOfTheTextIsWithinIt) {
  Start();
  GenerationRequest request = Request({1, 2, 3}, 20);
  const Answer whole = Run(request);
  const GenerationRequest resumed = Resumed(request, whole.tokens, 10);
  const auto state = [&](size_t count) {
    return *StateOf(request, {KeptBytes("x"), {}},
                    {whole.tokens.begin(), whole.tokens.begin() + static_cast<int>(count)});
  };
  const auto within = [&](const auto& change) {
    SequenceState changed = state(7);
    change(changed);
    return IsWithin(changed, resumed, info());
  };
  EXPECT_TRUE(within([](SequenceState&) {}));
  EXPECT_TRUE(IsWithin(state(10), resumed, info()));
  EXPECT_TRUE(IsWithin(state(1), resumed, info()));
  EXPECT_FALSE(IsWithin(state(11), resumed, info()));
  EXPECT_FALSE(within([](SequenceState& s) { s.history ^= 1; }));
  EXPECT_FALSE(within([](SequenceState& s) { s.model ^= 1; }));
  EXPECT_FALSE(within([](SequenceState& s) { ++s.outputs; }));
  EXPECT_FALSE(within([](SequenceState& s) { --s.outputs; }));
  EXPECT_FALSE(within([](SequenceState& s) { ++s.tokens; }));
  EXPECT_FALSE(within([](SequenceState& s) { s.tokens = 0; }));
  EXPECT_FALSE(within([](SequenceState& s) { s.tokens = -1; }));
  EXPECT_FALSE(within([](SequenceState& s) { s.pending = (s.pending + 1) % 256; }));
  EXPECT_TRUE(within([](SequenceState& s) { s.pending = kNoToken; }));
  SequenceState all = state(10);
  all.pending = kNoToken;  // nothing would be left to read
  EXPECT_FALSE(IsWithin(all, resumed, info()));
  GenerationRequest other = resumed;
  other.prompt[1] = 9;
  EXPECT_FALSE(IsWithin(state(7), other, info()));
}

// Tests states of every length of a text, with and without a pending token; outputs that are empty,
// unfinished or ended; and requests with and without a state to store.
TEST_F(EngineSurvivalTest, FromEveryStateAtEveryCutARequestContinuesAsWithoutIt) {
  Start();
  const std::vector<State> before = {nullptr, StateBehind(nullptr, {9, 8, 7}, 0, false),
                                     StateBehind(nullptr, {9, 8, 7}, 1, true)};
  int used = 0;
  for (const State& previous : before) {
    for (size_t prompt = 0; prompt < 4; ++prompt) {
      if (prompt == 0 && (previous == nullptr || previous->pending == kNoToken)) continue;
      GenerationRequest request = Request(RandomText(static_cast<int64_t>(prompt)), 3);
      request.previous = previous;
      request.store = true;
      const Answer whole = Run(request);
      ASSERT_EQ(whole.tokens.size(), 3U);
      for (size_t cut = 0; cut <= 3; ++cut) {
        for (const bool store : {true, false}) {
          request.store = store;
          GenerationRequest resumed = Resumed(request, whole.tokens, cut);
          const Answer expected = RunAlone(resumed);
          const std::vector<TokenId> text = resumed.prompt;
          const bool empty = previous == nullptr || previous->pending == kNoToken;
          for (size_t read = 1; read <= text.size(); ++read) {
            for (const bool pending : {false, true}) {
              if (pending && read == 1 && empty) continue;  // no such state: it has read nothing
              SCOPED_TRACE(absl::StrCat("prompt ", prompt, ", cut ", cut, ", store ", store,
                                        ", read ", read, ", pending ", pending));
              const size_t outputs = read > prompt ? read - prompt : 0;
              const auto last = text.begin() + static_cast<std::ptrdiff_t>(read);
              resumed.start = StateBehind(previous, {text.begin(), last}, outputs, pending);
              const bool within = IsWithin(*resumed.start, resumed, info());
              EXPECT_EQ(within, pending || read < text.size());
              if (!within) continue;
              ++used;
              const Answer answer = RunAlone(resumed);
              EXPECT_EQ(answer.outcome.status, absl::OkStatus());
              EXPECT_EQ(answer.tokens, expected.tokens);
              EXPECT_EQ(answer.outcome.reason, expected.outcome.reason);
              ExpectSameTurn(answer.outcome, expected.outcome);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(used, 300);
}

TEST_F(EngineSurvivalTest, AfterEveryStateAGroupGivesTheAnswersOfSingleRequests) {
  Start();
  const std::vector<TokenId> text = {5, 6, 7, 8};
  for (const bool penalties : {false, true}) {
    for (auto last = text.begin() + 1; last <= text.end(); ++last) {
      for (const bool pending : {false, true}) {
        if (pending ? last == text.begin() + 1 : last == text.end()) continue;  // no such request
        GenerationRequest request = Request({last, text.end()}, 4);
        request.previous = StateBehind(nullptr, {text.begin(), last}, 0, pending);
        if (penalties) request.sampling.repetition_penalty = 1.5F;
        request.store = true;
        for (const Sink& sink : SubmitGroup(request, 3).sinks) {
          const State state = StateOf(sink->Wait());
          GenerationRequest alone = Request(text, 4);
          alone.sampling = request.sampling;
          alone.store = true;
          const Sink expected = Submit(alone).sink;
          ExpectSameState(*state, *StateOf(expected->Wait()));
          EXPECT_EQ(sink->tokens(), expected->tokens());
          ++request.sampling.seed;
        }
      }
    }
  }
}

TEST_F(EngineSurvivalTest, ADrainHandsResumableStreamsOverAndWaitsForTheOthers) {
  model.slots = 3;
  StartHeld();
  const GenerationRequest patient = Request({4, 5}, 60);
  const Accepted waits = Submit(patient);
  const GenerationRequest request = Request({1, 2, 3}, 1'000'000);
  GenerationRequest survives = request;
  const auto recorder = std::make_shared<ResumePointRecorder>();
  survives.survival = {.resumable = true, .sink = recorder};
  const Accepted leaves = Submit(survives);
  survives.survival.sink = nullptr;
  const Accepted textless = Submit(survives);
  control->RunSteps(9);
  engine->BeginDrain();
  control->Resume();
  const Answer part = Read(leaves.sink);
  EXPECT_THAT(part.outcome.status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("resume the stream elsewhere")));
  EXPECT_GE(part.tokens.size(), 7U);
  ASSERT_NE(part.outcome.hand_over, nullptr);
  EXPECT_EQ(part.outcome.hand_over->outputs, part.tokens);  // no token is lost
  EXPECT_EQ(textless.sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(textless.sink->Wait().hand_over, nullptr);
  EXPECT_EQ(Read(waits.sink).tokens, Expected(patient));
  engine.reset();

  Start();
  GenerationRequest resumed = Resumed(request, part.tokens, part.tokens.size());
  resumed.stop.max_tokens = static_cast<int32_t>(part.tokens.size()) + 20;
  resumed.start = StateOf(request, *part.outcome.hand_over, part.tokens);
  ASSERT_TRUE(IsWithin(*resumed.start, resumed, info()));
  const double read = metrics.prompt_tokens.Value();
  const Answer rest = Run(resumed);
  EXPECT_EQ(metrics.prompt_tokens.Value() - read, 1);
  EXPECT_EQ(rest.outcome.usage.cached_tokens, request.prompt.size() + part.tokens.size() - 1);
  GenerationRequest undisturbed = request;
  undisturbed.stop.max_tokens = resumed.stop.max_tokens;
  std::vector<TokenId> all = part.tokens;
  all.insert(all.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(all, Expected(undisturbed));
}

TEST_F(EngineSurvivalTest, ADrainHandsOverNoStateOfAPrompt) {
  model.max_step_tokens = 8;
  StartHeld();
  GenerationRequest request = Request(RandomText(100), 5);
  request.survival = {.resumable = true, .sink = std::make_shared<ResumePointRecorder>()};
  const Accepted reads = Submit(request);
  control->RunSteps(2);
  engine->BeginDrain();
  control->Resume();
  const Outcome outcome = reads.sink->Wait();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(outcome.hand_over, nullptr);
}

TEST_F(EngineSurvivalTest, AParkedStreamIsHandedOverAsItIs) {
  model.slots = 1;
  StartHeld();
  GenerationRequest request = Request({1, 2, 3}, 1'000'000);
  request.service_class = ServiceClass::kBatch;
  request.survival = {.resumable = true, .sink = std::make_shared<ResumePointRecorder>()};
  const Accepted parked = Submit(request);
  control->RunSteps(5);
  const GenerationRequest urgent = Request({7}, 40);
  const Accepted goes_first = Submit(urgent);
  while (metrics.parks.Value() == 0) control->RunSteps(1);
  engine->BeginDrain();
  control->Resume();
  const Answer part = Read(parked.sink);
  ASSERT_NE(part.outcome.hand_over, nullptr);
  EXPECT_EQ(part.outcome.hand_over->outputs, part.tokens);
  GenerationRequest resumed = Resumed(request, part.tokens, part.tokens.size());
  resumed.start = StateOf(request, *part.outcome.hand_over, part.tokens);
  EXPECT_TRUE(IsWithin(*resumed.start, resumed, info()));
  goes_first.sink->Wait();
}

TEST_F(EngineSurvivalTest, AStateForWhichThereIsNoMemoryEndsAtMostItsRequest) {
  model.slots = 1;
  model.state_bytes = int64_t{1} << 20;
  Start();
  const ShortMemory short_memory(size_t{1} << 20);
  const auto no_memory = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory"));
  GenerationRequest stores = Request({1, 2}, 3);
  stores.store = true;
  const Outcome stored = Submit(stores).sink->Wait();
  EXPECT_THAT(stored.status, no_memory);
  EXPECT_EQ(stored.turn, nullptr);
  // A request that is to be parked ends.
  GenerationRequest batch = Request({3}, 1'000'000);
  batch.service_class = ServiceClass::kBatch;
  const Accepted parks = Submit(batch);
  parks.sink->WaitForParts(3);
  const GenerationRequest urgent = Request({4}, 5);
  ExpectServed(Submit(urgent).sink, urgent);
  EXPECT_THAT(parks.sink->Wait().status, no_memory);
  // These are errors of the server, not of a client that reads too slowly.
  EXPECT_EQ(metrics.finished(Ending::kError).Value(), 2);
  EXPECT_EQ(metrics.finished(Ending::kSlowClient).Value(), 0);
  // A resume point is left out, and what is handed over has no state.
  GenerationRequest survives = Request({5, 6}, 40);
  const auto recorder = std::make_shared<ResumePointRecorder>();
  survives.survival = {.resumable = true, .sink = recorder, .interval = 8};
  ExpectServed(Submit(survives).sink, survives);
  EXPECT_GE(recorder->asked(), 3);
  survives.stop.max_tokens = 1'000'000;
  const Accepted leaves = Submit(survives);
  leaves.sink->WaitForParts(3);
  engine->BeginDrain();
  const Outcome left = leaves.sink->Wait();
  EXPECT_EQ(left.status.code(), absl::StatusCode::kUnavailable);
  ASSERT_NE(left.hand_over, nullptr);
  EXPECT_EQ(left.hand_over->state, nullptr);
  EXPECT_THAT(recorder->points(), IsEmpty());
}

TEST_F(EngineSurvivalTest, NoMemoryForAStateCountsNoFirstTokenAsMissed) {
  Start();
  GenerationRequest first = Request({1, 2, 3}, 3);
  first.store = true;
  GenerationRequest next = Request({4}, 3);
  next.previous = StateOf(Submit(first).sink->Wait());
  control->FailNext(FakeCall::kRestore, absl::ResourceExhaustedError("none"));
  EXPECT_THAT(Submit(next).sink->Wait().status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory")));
  EXPECT_EQ(metrics.finished(Ending::kError).Value(), 1);
  const auto missed = metrics.ttft_missed_seconds[Method::kGenerate].Collect();
  EXPECT_EQ(missed.histogram.sample_count, 0U);
}

}  // namespace
}  // namespace aft::server
