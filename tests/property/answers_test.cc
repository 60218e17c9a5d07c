// Tests several answers to one prompt by the engine with real models: each answer equals that of a
// single request. Also tests the scores of a prompt. Runs on every device.

#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/engine/generate_engine.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/recording_sink.h"
#include "tests/unit/scheduling/random_rules.h"

namespace aft::server {
namespace {

using State = std::shared_ptr<const SequenceState>;

class AnswersTest : public RunnerFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  using SinkPtr = std::shared_ptr<RecordingSink>;

  AnswersTest() { config_ = GetParam().config; }

  GenerationRequest RandomRequest(const State& previous) {
    GenerationRequest request;
    request.arrival = std::chrono::steady_clock::now();
    request.previous = previous;
    request.prompt = RandomText((previous == nullptr || previous->pending == kNoToken ? 1 : 0) +
                                random_.Below(20));
    request.sampling = Warm(static_cast<uint64_t>(random_.Below(1000)));
    if (random_.Below(4) == 0) request.sampling.temperature = 0;
    if (random_.Below(2) == 0) request.sampling.repetition_penalty = 1.4F;
    if (random_.Below(2) == 0) request.sampling.frequency_penalty = 0.3F;
    request.stop.max_tokens = static_cast<int32_t>(1 + random_.Below(8));
    request.stop.ignore_eos = true;
    if (random_.Below(2) == 0) {
      request.stop.token_ids = RandomText(3);
      request.stop.min_tokens = static_cast<int32_t>(random_.Below(request.stop.max_tokens + 1));
      request.sampling.rules = RandomRules(random_, config_.vocab_size, request.stop.token_ids);
    }
    request.store = true;
    request.service_class = static_cast<ServiceClass>(random_.Below(3));
    return request;
  }

  static std::vector<SampledToken> Answer(GenerateEngine& engine,
                                          const GenerationRequest& request) {
    const auto sink = std::make_shared<RecordingSink>();
    EXPECT_TRUE(engine.Generate(request, sink).ok());
    EXPECT_EQ(sink->Wait().status, absl::OkStatus());
    return sink->all_tokens();
  }
  static State StateOf(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, absl::OkStatus());
    if (outcome.turn == nullptr) return nullptr;
    return std::make_shared<const SequenceState>(MakeState(*outcome.turn).value());
  }
};

TEST_P(AnswersTest, EachAnswerEqualsThatOfASingleRequest) {
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "random");
  EngineOptions options;
  options.model.max_step_tokens = 24;
  options.limits.max_queued_requests = 1000;
  options.limits.max_queued_tokens = 100'000;
  const auto engine =
      *GenerateEngine::Create(options, Load(), std::make_shared<FakeTokenizer>(), metrics);
  std::vector<State> states = {nullptr};
  const bool quick = device_.same_bits;  // an emulated GPU is slow
  for (int round = 0; round < (quick ? 3 : 2); ++round) {
    std::vector<std::pair<GenerationRequest, std::vector<SinkPtr>>> groups;
    for (int i = 0; i < (quick ? 5 : 2); ++i) {
      const size_t from = static_cast<size_t>(random_.Below(static_cast<int64_t>(states.size())));
      auto& [request, sinks] = groups.emplace_back(RandomRequest(states[from]), 0);
      for (int64_t n = 1 + random_.Below(quick ? 5 : 3); n > 0; --n) {
        sinks.push_back(std::make_shared<RecordingSink>());
      }
      ASSERT_TRUE(engine->GenerateGroup(request, {sinks.begin(), sinks.end()}).ok());
    }
    for (const auto& [request, sinks] : groups) {
      for (size_t i = 0; i < sinks.size(); ++i) {
        SCOPED_TRACE(i);
        const State state = StateOf(sinks[i]->Wait());
        ASSERT_NE(state, nullptr);
        GenerationRequest alone = request;
        alone.sampling.seed += i;
        const auto sink = std::make_shared<RecordingSink>();
        ASSERT_TRUE(engine->Generate(alone, sink).ok());
        const State expected = StateOf(sink->Wait());
        ASSERT_NE(expected, nullptr);
        ASSERT_TRUE(Same(sinks[i]->all_tokens(), sink->all_tokens()));
        EXPECT_EQ(state->had, expected->had);
        EXPECT_EQ(state->history, expected->history);
        // The slots are compared by how their sequences continue. Their bytes cannot be compared,
        // because some of them mean nothing.
        GenerationRequest next = RandomRequest(state);
        const std::vector<SampledToken> after = Answer(*engine, next);
        next.previous = expected;
        ASSERT_TRUE(Same(after, Answer(*engine, next)));
        if (state->tokens < kCaseTokens / 3) states.push_back(state);
      }
    }
  }
  EXPECT_GT(states.size(), 1U);
}

TEST_P(AnswersTest, TheScoresOfAPromptAreThoseOfATextToScore) {
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "random");
  EngineOptions options;
  options.model.max_step_tokens = 24;
  const auto engine =
      *GenerateEngine::Create(options, Load(), std::make_shared<FakeTokenizer>(), metrics);
  for (int round = 0; round < 3; ++round) {
    GenerationRequest request = RandomRequest(nullptr);
    request.prompt = RandomText(2 + random_.Below(kCaseTokens / 3));
    request.sampling.top_logprobs = 2;
    request.prompt_scores = true;
    const auto sink = std::make_shared<RecordingSink>();
    ASSERT_TRUE(engine->Generate(request, sink).ok());
    ScoringRequest text;
    text.arrival = request.arrival;
    text.text = request.prompt;
    text.top_logprobs = 2;
    const auto scored = std::make_shared<RecordingSink>();
    ASSERT_TRUE(engine->ScoreTexts({text}, {scored}).ok());
    ASSERT_TRUE(scored->Wait().status.ok() && sink->Wait().status.ok());
    std::vector<SampledToken> all = sink->all_tokens();  // the prompt's, then the output
    const std::vector<SampledToken> output(all.begin() + std::ssize(request.prompt) - 1, all.end());
    all.resize(request.prompt.size() - 1);
    EXPECT_TRUE(Same(all, scored->all_tokens()));
    request.prompt_scores = false;
    EXPECT_TRUE(Same(output, Answer(*engine, request)));
  }
}

INSTANTIATE_TEST_SUITE_P(Property, AnswersTest, testing::ValuesIn(EngineCases()), CaseName);

}  // namespace
}  // namespace aft::server
