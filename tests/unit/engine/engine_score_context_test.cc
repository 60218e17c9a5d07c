// Texts to score whose beginning is context: which tokens are scored, and which are not read.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduling/prefix_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

class EngineScoreContextTest : public EnginePrefixTest {
 protected:
  ScoringRequest Score(Tokens text, int64_t context) {
    ScoringRequest request = EngineTest::Score(std::move(text));
    request.context = context;
    return request;
  }

  // Expects the scores after the context and after those that the request brings. They are the last
  // scores of the text alone.
  static Outcome ExpectScores(const Sink& sink, const ScoringRequest& request) {
    const std::vector<SampledToken> all = FakeModelRunner::Score(request.text, 0);
    const auto tokens = static_cast<int64_t>(request.text.size());
    const auto first = static_cast<size_t>(tokens - request.scores(tokens));
    size_t next = first + static_cast<size_t>(request.scored);
    const Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.status, absl::OkStatus());
    double sum = 0;
    for (size_t i = first; i < next; ++i) sum += all[i - 1].logprob;
    for (const TokenDelta& delta : sink->parts()) {
      EXPECT_EQ(delta.first_index, next);
      for (const SampledToken& token : delta.tokens) {
        EXPECT_EQ(token.id, request.text[next]);
        EXPECT_EQ(token.logprob, all[next++ - 1].logprob);
        sum += token.logprob;
      }
    }
    EXPECT_EQ(next, request.text.size());
    EXPECT_EQ(outcome.logprob, sum);
    EXPECT_EQ(outcome.scored_bytes, request.text.size() - first);  // these tokens are bytes
    EXPECT_EQ(outcome.usage.scored_tokens, request.text.size() - first);
    EXPECT_EQ(outcome.usage.prompt_tokens, request.text.size());
    return outcome;
  }
  Outcome Run(const ScoringRequest& request) { return ExpectScores(Submit(request).sink, request); }
  Usage Run(const Tokens& text, int64_t context) { return Run(Score(text, context)).usage; }
};

TEST_F(EngineScoreContextTest, TheSecondTextReadsOnlyWhatFollowsTheContext) {
  Start();
  const Tokens context = RandomText(200);
  const Usage first = Run(Joined(context, RandomText(10)), 200);
  EXPECT_EQ(first.cache_miss, CacheMiss::kCold);
  EXPECT_EQ(first.cached_tokens, 0U);
  for (const int64_t length : {1, 10, 100}) {
    const double before = read();
    const Outcome outcome = Run(Score(Joined(context, RandomText(length)), 200));
    EXPECT_EQ(outcome.usage.cached_tokens, 199U);  // the last one is read, to score the next token
    EXPECT_EQ(outcome.usage.cache_miss, CacheMiss::kNone);
    EXPECT_EQ(read() - before, static_cast<double>(length) + 1);
    EXPECT_EQ(outcome.computed_tokens, static_cast<uint64_t>(length) + 1);
  }
  EXPECT_EQ(metrics.prefix_hits.Value(), 3);
  EXPECT_EQ(metrics.prefix_hit_tokens.Value(), 3 * 199);
  EXPECT_EQ(metrics.prefix_misses(PrefixMiss::kCold).Value(), 1);
  EXPECT_EQ(metrics.prefix_states.Value(), 1);  // there is no state after a text
}

TEST_F(EngineScoreContextTest, AnyContextGivesTheScoresOfTheTextAloneColdAndWarm) {
  options.model.prefix_cache_interval_tokens = 40;
  Start();
  for (const int64_t context : {0, 1, 2, 31, 32, 33, 34, 63, 64, 65, 100, 148, 149}) {
    const Tokens text = RandomText(150);
    const Usage cold = Run(text, context);
    const Usage warm = Run(text, context);
    EXPECT_EQ(cold.cached_tokens, 0U) << context;
    EXPECT_EQ(warm.cached_tokens == 0, context < 33) << context;
    const CacheMiss miss = context == 0 ? CacheMiss::kNone : CacheMiss::kTooShort;
    EXPECT_EQ(warm.cache_miss, context < 33 ? miss : CacheMiss::kNone) << context;
  }
}

TEST_F(EngineScoreContextTest, PromptsAndContextsShareOneCache) {
  Start();
  const Tokens context = RandomText(200);
  Run(Joined(context, RandomText(10)), 200);
  EXPECT_EQ(Serve(Joined(context, RandomText(5))).cached_tokens, 199U);
  // The other way round: the second prompt leaves a state where it diverges from the first.
  const Tokens system = RandomText(100);
  for (int i = 0; i < 2; ++i) Serve(Joined(system, RandomText(5)));
  EXPECT_EQ(Run(Joined(system, RandomText(50)), 130).cached_tokens, 100U);
  // A context that ends before the state cannot use it.
  EXPECT_EQ(Run(Joined(system, RandomText(50)), 100).cache_miss, CacheMiss::kDiverged);
}

TEST_F(EngineScoreContextTest, TextsThatComeTogetherReadTheContextOnce) {
  StartHeld();
  const Accepted other = Submit(Request(RandomText(3), 1));
  control->WaitUntilBlocked();
  const Tokens context = RandomText(300);
  std::vector<std::pair<ScoringRequest, Sink>> all;
  for (int i = 0; i < 12; ++i) {
    const ScoringRequest request = Score(Joined(context, RandomText(7)), 300);
    all.emplace_back(request, Submit(request).sink);
  }
  control->Resume();
  for (const auto& [request, sink] : all) ExpectScores(sink, request);
  EXPECT_EQ(other.sink->Wait().status, absl::OkStatus());
  EXPECT_EQ(read(), 3 + 307 + 11 * 8);
  EXPECT_EQ(metrics.prefix_hits.Value(), 11);
}

TEST_F(EngineScoreContextTest, OtherClientsAndSaltsDoNotShareTheContext) {
  Start();
  const Tokens context = RandomText(100);
  Run(Joined(context, {1}), 100);
  ScoringRequest request = Score(Joined(context, {2}), 100);
  request.client = client_b;
  EXPECT_EQ(Run(request).usage.cache_miss, CacheMiss::kCold);
  request = Score(Joined(context, {2}), 100);
  request.cache_salt = "user 7";
  EXPECT_EQ(Run(request).usage.cache_miss, CacheMiss::kCold);
  EXPECT_EQ(Run(Joined(context, {2}), 100).cached_tokens, 99U);
  EXPECT_EQ(Run(Joined(context, {2}), 0).cached_tokens, 0U);  // no context, no cache
}

TEST_F(EngineScoreContextTest, TheRestAndTheStateAreThoseOfTheTextWhateverWasCached) {
  Start();
  const Tokens text = RandomText(120);
  ScoringRequest whole = Score(text, 0);
  whole.store = true;
  const State expected = StateOf(Run(whole));
  for (const int64_t scored : {0, 1, 19, 20}) {
    for (const bool store : {false, true}) {
      ScoringRequest request = Score(text, 100);
      request.scored = scored;
      for (int64_t i = 0; i < scored; ++i) {
        request.logprob += FakeModelRunner::Score(text, 0)[static_cast<size_t>(99 + i)].logprob;
      }
      request.store = store;
      const Outcome outcome = Run(request);
      EXPECT_EQ(outcome.usage.resumed_tokens, scored);
      if (!store) continue;
      EXPECT_EQ(outcome.usage.cached_tokens, 99U);
      ExpectSameState(*StateOf(outcome), *expected);
    }
  }
}

TEST_F(EngineScoreContextTest, AContextThatIsTheWholeTextIsRefused) {
  Start();
  for (const int64_t context : {3, 4, 2'000'000'000}) {
    EXPECT_THAT(Refused(Score({1, 2, 3}, context)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "context_tokens: must be less than the text's tokens (3), got " +
                             std::to_string(context)));
  }
  ScoringRequest request = Score({1, 2, 3}, 2);
  request.scored = 2;
  EXPECT_THAT(Refused(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("resume.scores: 2, but the text has 1")));
}

}  // namespace
}  // namespace aft::server
