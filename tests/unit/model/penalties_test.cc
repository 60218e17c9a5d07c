#include "model/sampling/penalties.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "model/sampling/token_counts.h"
#include "tests/unit/model/sampling_inputs.h"

namespace aft {
namespace {

TEST(PenaltiesTest, CountsStopAtTheirMaximum) {
  constexpr float kMost = 16'777'216;
  TokenCount count = {kMost - 1, kSeen | kSampled};
  for (uint64_t i = 0; i < 3; ++i) count = WithSample(count, 1.0F, i, /*counted=*/true);
  EXPECT_EQ(count, (TokenCount{kMost, kSeen | kSampled | 3}));
  EXPECT_EQ(WithSeen(count), count);
}

// A sequence that moves to another slot brings what it sampled, and gets the same bits.
TEST(PenaltiesTest, CountsThatFollowATextEqualThoseOfItsTokens) {
  std::mt19937 random(12);
  for (const float decay : {1.0F, 0.996F, 0.5F, 1e-3F}) {
    History history = RandomHistory(random, 20);
    SamplingParams params;
    params.penalty_decay = decay;
    params.rules = RandomRules(random, 20);
    history.sampled.clear();
    constexpr uint64_t kFirst = (uint64_t{1} << 40) - 50;
    std::vector<TokenCount> counts = history.Counts(params, kFirst, 20);
    for (uint64_t i = 0; i < 3000; ++i) {
      history.sampled.push_back(static_cast<TokenId>(random() % 7 * (random() % 4)));
      CountSample(params, history.sampled.back(), kFirst + i, counts.data());
    }
    EXPECT_EQ(history.Counts(params, kFirst + 3000, 20), counts) << decay;
  }
}

TEST(PenaltiesTest, UncountedTokensOfEarlierTurnsAreNotCounted) {
  SamplingParams params;
  auto rules = std::make_shared<LogitRules>();
  rules->rules = {{.id = 7, .uncounted = 1}};
  params.rules = rules;
  const History history = {{{.id = 6, .sampled = 5}, {.id = 7, .sampled = 5}, {.id = 8}}, {}};
  const std::vector<TokenCount> counts = history.Counts(params, /*output_index=*/9, 10);
  EXPECT_EQ(counts[6], (TokenCount{5, kSeen | kSampled}));
  EXPECT_EQ(counts[7], (TokenCount{0, kSeen | kSampled}));
  EXPECT_EQ(counts[8], (TokenCount{0, kSeen}));
}

TEST(PenaltiesTest, NoPenaltyBansAToken) {
  const float largest = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Penalties& penalties :
       {Penalties{10.0F, 2.0F, 2.0F}, Penalties{1e-30F, -2.0F, -2.0F}}) {
    for (const float logit : {-largest, -1.0F, 0.0F, 1.0F, largest}) {
      const float penalised = Penalised(logit, {1e6F, kSeen | kSampled}, penalties, 9);
      EXPECT_GE(penalised, -largest) << logit;
      EXPECT_LE(penalised, largest) << logit;
    }
    EXPECT_EQ(Penalised(-infinity, {3.0F, kSeen | kSampled}, penalties, 9), -infinity);
  }
}

}  // namespace
}  // namespace aft
