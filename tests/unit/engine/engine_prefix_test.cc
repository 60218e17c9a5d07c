// The prefix cache in the engine: which tokens are read, and which are not.

#include <atomic>
#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/unit/scheduling/prefix_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST_F(EnginePrefixTest, TheLastTokenIsAlwaysRead) {
  Start();
  const Tokens prompt = RandomText(150);
  EXPECT_EQ(Serve(prompt).cache_miss, CacheMiss::kCold);
  const Usage again = Serve(prompt);
  EXPECT_EQ(again.cache_miss, CacheMiss::kDiverged);
  EXPECT_EQ(again.diverged_at, 150U);  // known to its end
  const double before = read();
  EXPECT_EQ(Serve(prompt).cached_tokens, 149U);
  EXPECT_EQ(read() - before, 1);
  // A prompt that ends within this one reads its last token too.
  EXPECT_EQ(Serve({prompt.begin(), prompt.begin() + 149}).cached_tokens, 0U);
  EXPECT_EQ(Serve({prompt.begin(), prompt.begin() + 149}).cached_tokens, 148U);
}

// Each answer of a group reads the last token itself, so the leader leaves a state before it.
TEST_F(EnginePrefixTest, APromptOfAGroupMayBeTooShortByOneTokenMore) {
  Start();
  for (const size_t length : {33U, 34U}) {
    const GenerationRequest request = Request(RandomText(length), 2);
    for (int time = 0; time < 3; ++time) {
      const Group group = SubmitGroup(request, 2);
      const Usage usage = group.sinks[0]->Wait().usage;
      group.sinks[1]->Wait();
      EXPECT_EQ(usage.cache_miss == CacheMiss::kTooShort, length == 33) << time;
      EXPECT_EQ(usage.cached_tokens > 0, length == 34 && time == 2) << time;
    }
  }
}

TEST_F(EnginePrefixTest, ATurnContinuesAfterTheAnswer) {
  Start();
  Tokens text = RandomText(50);
  uint32_t known = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const GenerationRequest request = Request(text, 40);
    const Usage usage = Serve(request);
    EXPECT_EQ(usage.cached_tokens, known) << turn;
    text = Joined(text, Expected(request));
    known = static_cast<uint32_t>(text.size()) - 1;  // the last one has not been consumed
    text = Joined(text, RandomText(10));
  }
}

TEST_F(EnginePrefixTest, ATurnContinuesAfterAnAnswerThatAStopTokenEnded) {
  model.next_token = [](uint64_t, int64_t count) {
    return count == 80 ? FakeTokenizer::kEos : static_cast<TokenId>(count % 256);
  };
  Start();
  const Tokens prompt = RandomText(60);
  GenerationRequest request = Request(prompt, 50);
  request.stop.ignore_eos = false;
  const Sink sink = Submit(request).sink;
  EXPECT_EQ(sink->Wait().reason, FinishReason::kEos);
  const Tokens answer = sink->tokens();
  EXPECT_EQ(answer.size(), 20U);
  const Usage next = Submit(Request(Joined(Joined(prompt, answer), {1, 2}), 3)).sink->Wait().usage;
  // With two steps in flight, a row consumes a token beyond the text, so the state is not kept.
  EXPECT_EQ(next.cached_tokens, model.max_steps_in_flight == 1 ? 80U : 0U);
}

TEST_F(EnginePrefixTest, NothingIsKeptAfterAVeryLongAnswer) {
  model.vocab_size = 16;
  Start();
  Submit(Request({1, 2, 3}, 65'536)).sink->Wait();
  EXPECT_EQ(metrics.prefix_states.Value(), 1);
  Submit(Request({2, 3, 4}, 65'538)).sink->Wait();
  EXPECT_EQ(metrics.prefix_states.Value(), 1);
}

TEST_F(EnginePrefixTest, StatesAreLeftAtIntervals) {
  options.model.prefix_cache_interval_tokens = 100;
  Start();
  const Tokens text = RandomText(1000);
  Serve(text);
  EXPECT_EQ(metrics.prefix_states.Value(), 10);  // nine at intervals, and one after the answer
  const Usage parts = Serve(Joined({text.begin(), text.begin() + 550}, RandomText(100)));
  EXPECT_EQ(parts.cached_tokens, 500U);
  EXPECT_EQ(metrics.prefix_states.Value(), 13);  // at 550, at 600 and after the answer
}

TEST_F(EnginePrefixTest, TextsShareABeginningOnlyIfTheyBeginFromTheSameInitialState) {
  Start();
  const Tokens prompt = RandomText(100);
  double hits = 0;
  // Token `token` stands for what the state knows; 0: the text begins from nothing.
  for (const int32_t token : {0, 7, 8}) {
    std::shared_ptr<SequenceState> initial;
    if (token > 0) {
      initial = std::make_shared<SequenceState>(*StateBehind(nullptr, {token}, 0, false));
      initial->initial = token;
      initial->had.clear();
    }
    const auto serve = [&](const Tokens& text) {
      GenerationRequest request = Request(text, 3);
      request.previous = initial;
      const Sink sink = Submit(request).sink;
      request.prompt = initial == nullptr ? text : Joined({token}, text);
      ExpectServed(sink, request);
      return sink->Wait().usage;
    };
    EXPECT_EQ(serve(prompt).cache_miss, CacheMiss::kCold) << token;
    EXPECT_EQ(serve(Joined(prompt, {1, 2})).diverged_at, 100U) << token;
    const double before = read();
    const Usage third = serve(Joined(prompt, {3, 4}));
    EXPECT_EQ(third.cached_tokens, 100U) << token;
    EXPECT_EQ(third.prompt_tokens, 102U) << token;
    EXPECT_EQ(read() - before, 2) << token;
    EXPECT_EQ(metrics.prefix_hit_tokens.Value(), hits += 100) << token;
    EXPECT_EQ(serve({5}).cache_miss, CacheMiss::kTooShort) << token;
  }
}

TEST_F(EnginePrefixTest, AnEvictedStateIsReported) {
  options.model.prefix_cache_bytes = 40'000;
  Start();
  const Tokens prompt = RandomText(100);
  for (int i = 0; i < 2; ++i) Serve(prompt, 1);
  for (int i = 0; i < 60; ++i) {
    const Tokens other = RandomText(100);
    Serve(other, 1);
    Serve(other, 1);
    EXPECT_LE(metrics.prefix_bytes.Value(), 40'000);
    if (metrics.prefix_evictions.Value() > 3) break;
  }
  EXPECT_GT(metrics.prefix_evictions.Value(), 3);
  EXPECT_EQ(Serve(prompt, 1).cache_miss, CacheMiss::kEvicted);
  EXPECT_EQ(Serve(prompt, 1).cached_tokens, 99U);
  EXPECT_EQ(metrics.prefix_misses(PrefixMiss::kEvicted).Value(), 1);
  EXPECT_EQ(metrics.prefix_limit.Value(), 40'000);
}

TEST_F(EnginePrefixTest, AStateThatIsLostEndsItsRequestAlone) {
  Start();
  const Tokens prompt = RandomText(100);
  Serve(prompt);
  Serve(prompt);
  control->FailNext(FakeCall::kRestore);
  EXPECT_THAT(Submit(Request(prompt, 3)).sink->Wait().status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("its state was lost")));
  EXPECT_EQ(Serve(prompt).cached_tokens, 99U);
}

TEST_F(EnginePrefixTest, APrefixWhoseStateCannotBeKeptIsReadAgain) {
  Start();
  const Tokens prompt = RandomText(100);
  Serve(prompt);
  EXPECT_EQ(metrics.prefix_failures.Value(), 0);
  control->FailNext(FakeCall::kKeep);
  Serve(prompt);
  EXPECT_EQ(metrics.prefix_failures.Value(), 1);
  EXPECT_EQ(Serve(prompt).cached_tokens, 0U);
  EXPECT_EQ(Serve(prompt).cached_tokens, 99U);
}

TEST_F(EnginePrefixTest, OtherClientsAndSaltsDoNotShareStates) {
  Start();
  const Tokens prompt = RandomText(100);
  for (int i = 0; i < 2; ++i) Serve(prompt);
  GenerationRequest request = Request(prompt, 3);
  request.client = client_b;
  EXPECT_EQ(Serve(request).cache_miss, CacheMiss::kCold);
  request = Request(prompt, 3);
  request.cache_salt = "user 7";
  EXPECT_EQ(Serve(request).cache_miss, CacheMiss::kCold);
  request = Request(prompt, 3);
  request.cache_salt = "user 7";
  EXPECT_EQ(Serve(request).cache_miss, CacheMiss::kDiverged);
  EXPECT_EQ(Serve(prompt).cached_tokens, 99U);
}

TEST_F(EnginePrefixTest, ZeroBytesTurnItOff) {
  options.model.prefix_cache_bytes = 0;
  Start();
  const Tokens prompt = RandomText(100);
  for (int i = 0; i < 4; ++i) {
    const Usage usage = Serve(prompt);
    EXPECT_EQ(usage.cached_tokens, 0U);
    EXPECT_EQ(usage.cache_miss, CacheMiss::kNone);
  }
  EXPECT_EQ(read(), 400);
  EXPECT_EQ(metrics.prefix_states.Value() + metrics.prefix_bytes.Value(), 0);
}

TEST_F(EnginePrefixTest, AnswersAreTheSameUnderAllOptions) {
  Start();
  const Tokens prompt = RandomText(120);
  for (int i = 0; i < 12; ++i) {
    GenerationRequest request = Request(prompt, 20);
    if (i % 2 == 1) request.sampling.repetition_penalty = 1.5F;
    if (i % 3 == 1) request.sampling.presence_penalty = 0.5F;
    if (i % 4 == 3) request.sampling.frequency_penalty = 0.5F;
    EXPECT_EQ(Serve(request).cached_tokens, i < 2 ? 0U : 119U) << i;
  }
}

// A resumed stream has its former output as a part of its prompt, and counts it as sampled.
TEST_F(EnginePrefixTest, AResumedStreamContinuesFromAStateOfItsPromptOrItsOutput) {
  Start();
  const Tokens prompt = RandomText(100);
  GenerationRequest request = Request(prompt, 80);
  request.sampling.repetition_penalty = 1.5F;
  request.sampling.frequency_penalty = 0.5F;
  const Tokens whole = Expected(request);
  const auto resumed = [&](size_t count) {
    GenerationRequest rest = request;
    rest.id = absl::StrCat("resumed-", ++arrived);
    rest.prompt.insert(rest.prompt.end(), whole.begin(),
                       whole.begin() + static_cast<std::ptrdiff_t>(count));
    rest.resumed = count;
    const double before = read();
    const Sink sink = Submit(rest).sink;
    const Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.computed_tokens, read() - before + static_cast<double>(80 - count));
    EXPECT_EQ(outcome.status, absl::OkStatus());
    Tokens got(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(count));
    for (const SampledToken& token : sink->all_tokens()) got.push_back(token.id);
    EXPECT_EQ(got, whole);
    EXPECT_EQ(outcome.usage.prompt_tokens, 100U);
    return outcome.usage;
  };
  EXPECT_EQ(resumed(40).cache_miss, CacheMiss::kCold);
  EXPECT_EQ(resumed(40).cache_miss, CacheMiss::kDiverged);
  EXPECT_EQ(resumed(40).cached_tokens, 139U);  // the prompt, and most of the output that came
  EXPECT_EQ(resumed(60).cached_tokens, 139U);
  EXPECT_EQ(resumed(20).cached_tokens, 0U);
  EXPECT_EQ(resumed(20).cached_tokens, 119U);
  EXPECT_EQ(Serve(prompt).cached_tokens, 0U);
  EXPECT_EQ(Serve(prompt).cached_tokens, 99U);
  EXPECT_EQ(resumed(80).cached_tokens, 0U);  // it had ended: nothing is read
}

TEST_F(EnginePrefixTest, AStoredStateHasTheWholeText) {
  Start();
  const Tokens prompt = RandomText(120);
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = Request(prompt, 4);
    request.sampling.seed = 5;
    request.sampling.repetition_penalty = 1.5F;
    request.store = true;
    const Sink sink = Submit(request).sink;
    const Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.usage.cached_tokens, i < 2 ? 0U : 119U);
    const State state = StateOf(outcome);
    EXPECT_EQ(state->tokens, 124);
    EXPECT_EQ(state->history, HistoryOf(HistoryOf(0, prompt), Expected(request)));
    FakeModelRunner::Text text(model);
    text.Read(prompt);
    EXPECT_EQ(sink->tokens(), text.Sample(request.sampling, 4));
    GenerationRequest next = Request({1, 2, 3}, 6);
    next.previous = state;
    next.sampling = request.sampling;
    text.Read({1, 2, 3});
    const Sink answer = Submit(next).sink;
    EXPECT_EQ(answer->Wait().usage.cache_miss, CacheMiss::kNone);
    EXPECT_EQ(answer->tokens(), text.Sample(next.sampling, 6));
  }
}

TEST_F(EnginePrefixTest, OnlyComputedTokensAreCharged) {
  model.slots = 1;
  Start();
  const Tokens system = RandomText(1000);
  for (int i = 0; i < 2; ++i) Serve(Joined(system, {i}), 1);
  // Without its hits, the anonymous client would have had more than b. With them, the two take
  // turns as if its prompts were short.
  control->Hold();
  std::vector<Accepted> all = {Submit(Request(RandomText(3), 1))};
  for (int i = 0; i < 4; ++i) {
    all.push_back(Submit(Request(Joined(system, {10 + i}), 1)));
    GenerationRequest request = Request(RandomText(3), 1);
    request.client = client_b;
    all.push_back(Submit(request));
  }
  control->Resume();
  for (const Accepted& accepted : all) EXPECT_EQ(accepted.sink->Wait().status, absl::OkStatus());
  EXPECT_EQ(metrics.prefix_hit_tokens.Value(), 4000);
}

TEST_F(EnginePrefixTest, ADeadlineIsNotRefusedForTokensThatNeedNotBeRead) {
  std::atomic<bool> slow = false;
  // While `slow` is set, each reading of the engine's clock takes a millisecond.
  options.clock = [this, &slow] {
    if (slow) clock.Advance(milliseconds(1));
    return clock.Now();
  };
  options.scheduling.step_target = milliseconds(0);
  Start();
  const Tokens prompt = RandomText(3000);
  slow = true;
  for (int i = 0; i < 2; ++i) Serve(prompt, 1);
  slow = false;
  GenerationRequest request = Request(prompt, 1);
  request.deadline = clock.Now() + milliseconds(20);
  EXPECT_EQ(Serve(request).cached_tokens, 2999U);
  slow = true;  // the last request took no time
  Serve(RandomText(3000), 1);
  slow = false;
  // A prompt that is longer than any known text is refused, unless the engine is idle.
  control->Hold();
  const Accepted other = Submit(Request(RandomText(3), 1));
  control->WaitUntilBlocked();
  GenerationRequest longer = Request(RandomText(20'000), 1);
  longer.deadline = clock.Now() + milliseconds(20);
  EXPECT_THAT(Refused(longer), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("the deadline cannot be met")));
  // So is a text of which no kept state can have more than a short context.
  ScoringRequest text = Score(prompt);
  text.context = 10;
  text.deadline = clock.Now() + milliseconds(10);
  EXPECT_THAT(Refused(text), StatusIs(absl::StatusCode::kResourceExhausted,
                                      HasSubstr("the deadline cannot be met")));
  control->Resume();
  EXPECT_EQ(other.sink->Wait().status, absl::OkStatus());
  engine.reset();  // it must end before its clock
}

TEST_F(EnginePrefixTest, FloodsOfPromptsThatComeOnceDoNotEvictRepeatedOnes) {
  options.model.prefix_cache_bytes = 60'000;
  Start();
  const Tokens hot = RandomText(200);
  for (int i = 0; i < 3; ++i) Serve(Joined(hot, {i}), 1);
  for (int i = 0; i < 500; ++i) Submit(Request(RandomText(60), 40)).sink->Wait();
  EXPECT_GT(metrics.prefix_evictions.Value(), 300);
  EXPECT_EQ(Serve(Joined(hot, {77}), 1).cached_tokens, 200U);
}

}  // namespace
}  // namespace aft::server
