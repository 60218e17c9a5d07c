// Tests the engine with a prefix cache over a real runner: every answer equals that of its prompt
// alone. Runs on every device.

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/engine/generate_engine.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/recording_sink.h"

namespace aft::server {
namespace {

class PrefixTest : public RunnerFixture, public testing::WithParamInterface<NetworkCase> {
 protected:
  PrefixTest() { config_ = GetParam().config; }

  SamplingParams RandomParams() {
    SamplingParams params =
        random_.Below(3) == 0 ? Greedy() : Warm(static_cast<uint64_t>(random_.Below(1000)));
    if (random_.Below(3) == 0) params.repetition_penalty = 1.7F;
    if (random_.Below(3) == 0) params.frequency_penalty = 0.6F;
    return params;
  }

  static GenerationRequest Request(std::vector<TokenId> prompt, const SamplingParams& sampling,
                                   int32_t max_tokens) {
    GenerationRequest request;
    request.arrival = std::chrono::steady_clock::now();
    request.prompt = std::move(prompt);
    request.sampling = sampling;
    request.stop.max_tokens = max_tokens;
    request.stop.ignore_eos = true;
    return request;
  }

  std::unique_ptr<GenerateEngine> MakeEngine(
      int64_t interval = ModelConfig().prefix_cache_interval_tokens) {
    EngineOptions options;
    options.model.max_step_tokens = 40;
    options.model.prefix_cache_interval_tokens = interval;
    auto engine =
        GenerateEngine::Create(options, Load(), std::make_shared<FakeTokenizer>(), metrics_);
    AFT_CHECK(engine.ok());
    return *std::move(engine);
  }

  prometheus::Registry registry_;
  ModelMetrics metrics_{registry_, "random"};
};

TEST_P(PrefixTest, EveryAnswerEqualsThatOfThePromptAlone) {
  const std::unique_ptr<ModelRunner> alone = Load();
  const std::unique_ptr<GenerateEngine> engine = MakeEngine(/*interval=*/40);
  std::vector<std::vector<TokenId>> texts;
  for (int round = 0; round < (device_.slow ? 2 : 3); ++round) {
    texts.push_back(RandomText(70));
    std::vector<GenerationRequest> requests;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int i = 0; i < 5; ++i) {
      std::vector<TokenId> prompt = texts[static_cast<size_t>(
          i < 3 ? round : random_.Below(static_cast<int64_t>(texts.size())))];
      prompt.resize(
          static_cast<size_t>(33 + random_.Below(static_cast<int64_t>(prompt.size()) - 32)));
      for (int64_t n = random_.Below(5); n > 0; --n) prompt.push_back(RandomText(1)[0]);
      const int32_t most = static_cast<int32_t>(kCaseTokens - static_cast<int64_t>(prompt.size()));
      requests.push_back(Request(prompt, RandomParams(),
                                 1 + static_cast<int32_t>(random_.Below(std::min(most, 12)))));
      sinks.push_back(std::make_shared<RecordingSink>());
      ASSERT_TRUE(engine->Generate(requests.back(), sinks.back()).ok());
    }
    // An emulated GPU has one thread at a time.
    for (const auto& sink : sinks) {
      ASSERT_EQ(sink->Wait().status, absl::OkStatus());
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      const GenerationRequest& request = requests[i];
      const std::vector<SampledToken> answer = sinks[i]->all_tokens();
      const std::vector<SampledToken> expected =
          Generate(*alone, 0, request.prompt, request.stop.max_tokens, request.sampling);
      ASSERT_TRUE(Same(answer, expected)) << "round " << round;
      // Later requests may continue after this answer.
      std::vector<TokenId> text = request.prompt;
      for (const SampledToken& token : answer) text.push_back(token.id);
      if (text.size() < 85) texts.push_back(text);
    }
  }
  EXPECT_GT(metrics_.prefix_hits.Value(), 2);
  EXPECT_LE(metrics_.prefix_bytes.Value(), metrics_.prefix_limit.Value());
}

// If a model reads generated tokens differently, the state after an answer must not be used for a
// prompt that has the answer in it.
TEST_P(PrefixTest, APromptThatHoldsAnAnswerIsReadAsAPrompt) {
  const std::unique_ptr<ModelRunner> alone = Load();
  const std::unique_ptr<GenerateEngine> engine = MakeEngine();
  std::vector<TokenId> text = RandomText(40);
  for (int turn = 0; turn < 3; ++turn) {
    const GenerationRequest request = Request(text, Warm(5), 12);
    const auto sink = std::make_shared<RecordingSink>();
    ASSERT_TRUE(engine->Generate(request, sink).ok());
    const Outcome outcome = sink->Wait();
    ASSERT_EQ(outcome.status, absl::OkStatus());
    // Such a model may have a state for the end of the first prompt, but not for places after it.
    EXPECT_EQ(outcome.usage.cached_tokens > 40, turn > 0 && !alone->info().generated_differ);
    const std::vector<SampledToken> answer = sink->all_tokens();
    for (const SampledToken& token : answer) text.push_back(token.id);
    ASSERT_TRUE(Same(answer, Generate(*alone, 0, request.prompt, 12, request.sampling))) << turn;
    text.push_back(7);
  }
}

// A resumed stream reads its prompt as generated tokens. If that makes a difference, the stream
// must not use the cache.
TEST_P(PrefixTest, AResumedStreamUsesTheCacheUnlessGeneratedTokensDiffer) {
  const std::unique_ptr<ModelRunner> alone = Load();
  const std::unique_ptr<GenerateEngine> engine = MakeEngine();
  const std::vector<TokenId> prompt = RandomText(40);
  std::vector<TokenId> whole;
  for (int i = 0; i < 3; ++i) {  // the third request finds the state of the second one
    GenerationRequest request = Request(prompt, Warm(5), 20);
    request.resumed = i == 0 ? 0 : 10;
    request.prompt.insert(request.prompt.end(), whole.begin(),
                          whole.begin() + static_cast<std::ptrdiff_t>(request.resumed));
    const auto sink = std::make_shared<RecordingSink>();
    ASSERT_TRUE(engine->Generate(request, sink).ok());
    const Outcome outcome = sink->Wait();
    ASSERT_EQ(outcome.status, absl::OkStatus());
    std::vector<TokenId> got(whole.begin(),
                             whole.begin() + static_cast<std::ptrdiff_t>(request.resumed));
    for (const SampledToken& token : sink->all_tokens()) got.push_back(token.id);
    if (i == 0) whole = got;
    if (alone->info().generated_differ) {
      EXPECT_EQ(outcome.usage.cache_miss, i == 0 ? CacheMiss::kCold : CacheMiss::kNone);
      EXPECT_EQ(outcome.usage.cached_tokens, 0U);
    } else {
      if (device_.same_bits) {
        EXPECT_EQ(got, whole) << i;
      }
      EXPECT_EQ(outcome.usage.cached_tokens, i < 2 ? 0U : 49U) << i;
    }
  }
}

// The scores after a context equal those of the text alone, whether the context was read or taken
// from the cache.
TEST_P(PrefixTest, ScoresAfterAContextEqualThoseOfTheTextAlone) {
  const std::unique_ptr<ModelRunner> alone = Load();
  const std::unique_ptr<GenerateEngine> engine = MakeEngine();
  const std::vector<TokenId> context = RandomText(50);
  for (uint32_t round = 0; round < 3; ++round) {
    ScoringRequest request;
    request.arrival = std::chrono::steady_clock::now();
    request.text = context;
    request.context = 50;
    for (const TokenId token : RandomText(12)) request.text.push_back(token);
    const auto sink = std::make_shared<RecordingSink>();
    ASSERT_TRUE(engine->ScoreTexts({request}, {sink}).ok());
    const Outcome outcome = sink->Wait();
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.usage.cached_tokens, round == 0 ? 0U : 49U);
    const std::vector<SampledToken> scores = sink->all_tokens();
    std::vector<SampledToken> expected = Score(*alone, 0, request.text, 0, 40);
    expected.erase(expected.begin(), expected.begin() + 49);
    ASSERT_TRUE(Same(scores, expected)) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Property, PrefixTest, testing::ValuesIn(EngineCases()), CaseName);

}  // namespace
}  // namespace aft::server
