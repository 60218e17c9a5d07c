// Log-probabilities of a generation's own prompt: they are those of Score, and cost no second pass.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/unit/scheduling/prefix_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EnginePromptScoresTest : public EnginePrefixTest {
 protected:
  GenerationRequest Scored(Tokens prompt, int32_t max_tokens, int32_t top_logprobs = -1) {
    GenerationRequest request = Request(std::move(prompt), max_tokens);
    request.sampling.top_logprobs = top_logprobs;
    request.prompt_scores = true;
    return request;
  }

  // Every bit of a score, as text.
  static std::string Shown(const SampledToken& token) {
    std::string text = absl::StrFormat("%d %a", token.id, token.logprob);
    for (const TokenLogprob& top : token.top) {
      absl::StrAppendFormat(&text, " %d %a", top.id, top.logprob);
    }
    return text;
  }

  // The scores of the prompt, which follow each other and come before all output.
  static std::vector<std::string> ScoresOf(const RecordingSink& sink, size_t first = 1) {
    std::vector<std::string> scores;
    bool output = false;
    for (const TokenDelta& delta : sink.parts()) {
      output = output || !delta.of_prompt;
      if (!delta.of_prompt) continue;
      EXPECT_FALSE(output);
      EXPECT_EQ(delta.first_index, first + scores.size());
      EXPECT_EQ(delta.text, "");
      for (const SampledToken& token : delta.tokens) scores.push_back(Shown(token));
    }
    return scores;
  }

  // What Score gives for the text.
  std::vector<std::string> ScoresOfText(const Tokens& text, int32_t top_logprobs) {
    ScoringRequest request = Score(text);
    request.top_logprobs = std::max(top_logprobs, 0);
    const Sink sink = Submit(std::move(request)).sink;
    EXPECT_EQ(sink->Wait().status, absl::OkStatus());
    std::vector<std::string> scores;
    for (const TokenDelta& delta : sink->parts()) {
      EXPECT_FALSE(delta.of_prompt);
      for (const SampledToken& token : delta.tokens) scores.push_back(Shown(token));
    }
    return scores;
  }

  // Also checks the output, if there is one.
  Outcome ExpectScored(const Sink& sink, const GenerationRequest& request) {
    Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(ScoresOf(*sink), ScoresOfText(request.prompt, request.sampling.top_logprobs));
    // No token of the prompt was read twice.
    EXPECT_LE(outcome.computed_tokens, request.prompt.size() + outcome.usage.generated_tokens);
    if (request.stop.max_tokens > 0) {
      EXPECT_EQ(sink->tokens(), Expected(request));
    }
    EXPECT_EQ(outcome.usage.scored_tokens, request.prompt.size() - 1);
    EXPECT_EQ(outcome.usage.cached_tokens, 0U);
    EXPECT_EQ(outcome.usage.cache_miss, CacheMiss::kNone);
    return outcome;
  }
  Outcome Run(const GenerationRequest& request) {
    return ExpectScored(Submit(request).sink, request);
  }
};

TEST_F(EnginePromptScoresTest, TheyAreTheScoresOfTheTextHoweverItIsCut) {
  model.slots = 2;
  model.max_step_tokens = 8;
  Start();
  for (const int64_t length : {1, 2, 7, 8, 9, 100}) {
    for (const int32_t top : {-1, 0, 3}) Run(Scored(RandomText(length), 5, top));
  }
  EXPECT_EQ(metrics.scored_tokens[Method::kGenerate].Value(), 2 * 3 * (1 + 6 + 7 + 8 + 99));
}

TEST_F(EnginePromptScoresTest, TheyDoNotUseThePrefixCache) {
  Start();
  const Tokens prompt = RandomText(200);
  for (int i = 0; i < 3; ++i) Serve(prompt);
  EXPECT_EQ(metrics.prefix_hits.Value(), 1);
  for (const int32_t output : {0, 4}) Run(Scored(prompt, output, 2));
  EXPECT_EQ(metrics.prefix_hits.Value(), 1);
  EXPECT_EQ(Serve(prompt).cached_tokens, 199U);  // which still serves others
}

TEST_F(EnginePromptScoresTest, NeighboursChangeNothing) {
  model.slots = 5;
  model.max_step_tokens = 16;
  Start();
  std::vector<std::pair<GenerationRequest, Sink>> all;
  for (int i = 0; i < 60; ++i) {
    GenerationRequest request =
        Scored(RandomText(1 + random.Below(70)), static_cast<int32_t>(random.Below(20)),
               static_cast<int32_t>(random.Below(4)) - 1);
    request.service_class = static_cast<ServiceClass>(random.Below(3));
    request.prompt_scores = random.Below(3) > 0 || request.stop.max_tokens == 0;
    if (random.Below(2) == 0) request.sampling.repetition_penalty = 1.5F;
    all.emplace_back(request, Submit(request).sink);
  }
  for (const auto& [request, sink] : all) {
    if (request.prompt_scores) {
      ExpectScored(sink, request);
    } else {
      ExpectServed(sink, request);
      EXPECT_THAT(ScoresOf(*sink), IsEmpty());
    }
  }
}

TEST_F(EnginePromptScoresTest, WithoutOutputThePromptIsOnlyScored) {
  model.max_seq_len = 30;
  Start();
  for (const int64_t length : {1, 2, 29, 30}) {
    const Outcome outcome = Run(Scored(RandomText(length), 0, 1));
    EXPECT_EQ(outcome.reason, FinishReason::kLength);
    EXPECT_EQ(outcome.limit, "stop.max_tokens=0");
    EXPECT_EQ(outcome.usage.generated_tokens, 0U);
  }
  EXPECT_EQ(metrics.generated_tokens.Value(), 0);
  EXPECT_THAT(Refused(Scored(RandomText(31), 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("31 tokens exceed")));
  EXPECT_THAT(Refused(Scored(RandomText(30), 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least one more")));
  EXPECT_THAT(Refused(Request(RandomText(3), 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_tokens: 0 is below 1")));
  EXPECT_THAT(Refused(Scored(RandomText(3), -1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_tokens: -1 is below 0")));
}

TEST_F(EnginePromptScoresTest, AStateAfterAPromptWithoutOutputContinuesIt) {
  Start();
  for (const int64_t length : {1, 2, 40}) {
    GenerationRequest first = Scored(RandomText(length), 0);
    first.store = true;
    const auto state = StateOf(Run(first));
    EXPECT_EQ(state->tokens, length);
    EXPECT_EQ(state->pending == kNoToken, length == 1);
    GenerationRequest next = Request(RandomText(5), 6);
    next.previous = state;
    const Sink sink = Submit(next).sink;
    EXPECT_EQ(sink->Wait().status, absl::OkStatus());
    GenerationRequest whole = next;
    whole.previous = nullptr;
    whole.prompt = Joined(first.prompt, next.prompt);
    EXPECT_EQ(sink->tokens(), Expected(whole));
  }
}

TEST_F(EnginePromptScoresTest, OnlyTheRequestsOwnTextIsScored) {
  Start();
  const Tokens before = RandomText(20);
  for (const bool pending : {false, true}) {
    GenerationRequest request = Scored(RandomText(10), 4, 2);
    request.previous = StateBehind(nullptr, before, 0, pending);
    const Sink sink = Submit(request).sink;
    EXPECT_EQ(sink->Wait().status, absl::OkStatus());
    std::vector<std::string> all = ScoresOfText(Joined(before, request.prompt), 2);
    const size_t first = pending ? 0 : 1;
    all.erase(all.begin(), all.begin() + 19 + static_cast<std::ptrdiff_t>(first));
    EXPECT_EQ(ScoresOf(*sink, first), all);
    const Tokens output = sink->tokens();
    ASSERT_EQ(output.size(), 4U);
    // A resumed stream counts them like the stream itself.
    request.prompt = Joined(request.prompt, {output[0], output[1]});
    request.resumed = 2;
    EXPECT_EQ(Submit(request).sink->Wait().usage.scored_tokens, all.size());
  }
}

TEST_F(EnginePromptScoresTest, OfSeveralAnswersTheFirstHasThem) {
  Start();
  for (const int64_t length : {1, 2, 100}) {
    const GenerationRequest request = Scored(RandomText(length), 5, 1);
    const std::vector<Sink> sinks = SubmitGroup(request, 2).sinks;
    ExpectScored(sinks[0], request);
    GenerationRequest second = request;
    ++second.sampling.seed;
    ExpectServed(sinks[1], second);
    EXPECT_THAT(ScoresOf(*sinks[1]), IsEmpty());
    EXPECT_EQ(sinks[1]->Wait().usage.scored_tokens, 0U);
  }
}

TEST_F(EnginePromptScoresTest, AStreamIsResumedWithThemUnlessItHasOutput) {
  Start();
  const GenerationRequest request = Scored(RandomText(50), 6);
  Run(request);
  EXPECT_EQ(Submit(request).sink->Wait().usage.scored_tokens, 49U);
  GenerationRequest begun = request;
  begun.start =
      StateBehind(nullptr, {request.prompt.begin(), request.prompt.begin() + 30}, 0, true);
  Run(begun);
  const Tokens output = Expected(request);
  GenerationRequest broken = request;
  broken.prompt.insert(broken.prompt.end(), output.begin(), output.begin() + 2);
  broken.resumed = 2;
  const Sink sink = Submit(broken).sink;
  EXPECT_EQ(sink->Wait().status, absl::OkStatus());
  EXPECT_THAT(ScoresOf(*sink), IsEmpty());
  EXPECT_EQ(sink->Wait().usage.scored_tokens, 49U);  // of the whole stream
  EXPECT_EQ(sink->parts().front().first_index, 2U);
  broken.stop.max_tokens = 0;
  EXPECT_FALSE(Refused(broken).ok());
}

TEST_F(EnginePromptScoresTest, TheFirstTokenOfAnAnswerIsSampledAndThatOfATextIsScored) {
  model.slots = 1;
  model.max_step_tokens = 2;
  model.max_steps_in_flight = 1;  // the clock counts submitted steps
  options.clock = [this] { return clock.Now() + std::chrono::seconds(control->step_count()); };
  Start();
  const Outcome answer = Submit(Scored({1, 2, 3, 4, 5}, 2)).sink->Wait();
  EXPECT_EQ(answer.timings.first_token, std::chrono::seconds(3));
  const auto before = std::chrono::seconds(control->step_count());
  const Outcome text = Submit(Score({1, 2, 3, 4, 5})).sink->Wait();
  EXPECT_EQ(text.timings.first_token, before + std::chrono::seconds(1));
}

TEST_F(EnginePromptScoresTest, AClientThatIsTooSlowForTheScoresHasMissedNoFirstToken) {
  Start();
  const auto full = std::make_shared<RecordingSink>(/*accept=*/0);
  EXPECT_EQ(Submit(Scored({1, 2, 3}, 5), full).sink->Wait().status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(metrics.finished(Ending::kSlowClient).Value(), 1);
  const auto missed = metrics.ttft_missed_seconds[Method::kGenerate].Collect();
  EXPECT_EQ(missed.histogram.sample_count, 0U);
}

TEST_F(EnginePromptScoresTest, ARequestForScoresAloneHasNoFirstTokenToMiss) {
  model.slots = 1;
  StartHeld();
  const Sink running = Submit(Scored({1, 2, 3}, 2)).sink;
  control->WaitUntilBlocked();
  const Accepted waiting = Submit(Scored({1, 2, 3}, 0));
  engine->Cancel(waiting.handle);
  control->Resume();
  EXPECT_EQ(waiting.sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(running->Wait().status, absl::OkStatus());
  const auto missed = metrics.ttft_missed_seconds[Method::kGenerate].Collect();
  EXPECT_EQ(missed.histogram.sample_count, 0U);
}

}  // namespace
}  // namespace aft::server
