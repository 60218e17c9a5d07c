#include "model/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/sampling/penalties.h"
#include "model/sampling/philox.h"
#include "model/sampling/row_rules.h"
#include "tests/unit/model/sampling_inputs.h"

namespace aft {
namespace {

using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SamplingParams Params(float temperature, int32_t top_k = 0, float top_p = 1.0F, uint64_t seed = 1) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.seed = seed;
  return params;
}

SampledToken SampleToken(const std::vector<float>& logits, const SamplingParams& params,
                         uint64_t output_index = 0, const std::vector<TokenCount>& counts = {}) {
  Sampler sampler;
  SampledToken token;
  const absl::Status status =
      sampler.Sample(logits.data(), static_cast<int64_t>(logits.size()), params,
                     counts.empty() ? nullptr : counts.data(), output_index, &token);
  EXPECT_TRUE(status.ok()) << status;
  return token;
}

// The logits after the rules, token by token.
std::vector<float> NaiveRuled(std::vector<float> logits, const SamplingParams& params,
                              uint64_t output_index) {
  if (params.rules == nullptr) return logits;
  for (size_t i = 0; i < logits.size(); ++i) {
    const LogitRule* found = nullptr;
    for (const LogitRule& rule : params.rules->rules) {
      if (rule.id == static_cast<TokenId>(i)) found = &rule;
    }
    const bool ends_early = found != nullptr && found->ends == 1 && output_index < params.ends_from;
    const bool banned = found == nullptr ? params.rules->only_these : ends_early;
    if (found != nullptr) logits[i] += found->bias;
    if (banned) logits[i] = -kInfinity;
  }
  return logits;
}

std::vector<double> NaivePenalised(const std::vector<float>& logits, const SamplingParams& params,
                                   const History& history) {
  std::vector<double> values(logits.begin(), logits.end());
  std::vector<double> times(logits.size());
  std::vector<bool> seen(logits.size());
  std::vector<bool> sampled(logits.size());
  std::vector<bool> uncounted(logits.size());
  if (params.rules != nullptr) {
    for (const LogitRule& rule : params.rules->rules) {
      uncounted[static_cast<size_t>(rule.id)] = rule.uncounted == 1;
    }
  }
  const double decay = params.penalty_decay;
  for (const TokenUse& use : history.had) {
    const auto id = static_cast<size_t>(use.id);
    seen[id] = true;
    if (decay < 1 || use.sampled == 0) continue;
    sampled[id] = true;
    if (!uncounted[id]) times[id] = use.sampled;
  }
  for (size_t i = 0; i < history.sampled.size(); ++i) {
    const auto id = static_cast<size_t>(history.sampled[i]);
    seen[id] = sampled[id] = true;
    const auto since = static_cast<double>(history.sampled.size() - 1 - i);
    if (!uncounted[id]) times[id] += std::pow(decay, since);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const double repetition = double{params.repetition_penalty};
    if (seen[i]) values[i] = values[i] > 0 ? values[i] / repetition : values[i] * repetition;
    if (sampled[i]) values[i] -= double{params.presence_penalty};
    values[i] -= double{params.frequency_penalty} * times[i];
    values[i] = static_cast<float>(values[i]);  // logits are fp32
  }
  return values;
}

// The definition in plain steps: penalties, sort, cut, then the Gumbel maximum over what is left.
TokenId NaiveSample(const std::vector<float>& logits, const SamplingParams& params,
                    uint64_t output_index, const History& history = {}) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const std::vector<double> values =
      NaivePenalised(NaiveRuled(logits, params, output_index), params, history);
  const auto logit_of = [&](TokenId id) { return values[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return logit_of(a) > logit_of(b); });
  if (params.temperature == 0.0F) return order[0];
  const double best = logit_of(order[0]);
  const double temperature = params.temperature_last ? 1.0 : params.temperature;
  const auto is_improbable = [&](TokenId id) {
    return std::exp((logit_of(id) - best) / temperature) < double{params.min_p};
  };
  order.erase(std::find_if(order.begin(), order.end(), is_improbable), order.end());
  const auto keep_top_k = [&] {
    if (params.top_k > 0) {
      order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
    }
  };
  if (!params.temperature_last) keep_top_k();
  if (params.top_p < 1.0F) {
    std::vector<double> weights;
    for (const TokenId id : order) {
      weights.push_back(std::exp((logit_of(id) - logit_of(order[0])) / temperature));
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double sum = 0.0;
    size_t kept = 0;
    while (kept < order.size() && sum < params.top_p * total) sum += weights[kept++];
    order.resize(std::max<size_t>(kept, 1));
  }
  if (params.temperature_last) keep_top_k();
  std::sort(order.begin(), order.end());
  double highest = -std::numeric_limits<double>::infinity();
  TokenId winner = -1;
  for (const TokenId id : order) {
    const std::array<uint32_t, 4> words =
        Philox4x32({static_cast<uint32_t>(output_index), 0U, static_cast<uint32_t>(id) / 4,
                    static_cast<uint32_t>(output_index >> 32)},
                   {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)});
    const double uniform = (words[static_cast<size_t>(id) % 4] + 0.5) / 4294967296.0;
    const double score = logit_of(id) / params.temperature - std::log(-std::log(uniform));
    if (score > highest) {
      highest = score;
      winner = id;
    }
  }
  return winner;
}

// Known answers: Random123's kat_vectors, "philox4x32 10".
TEST(PhiloxTest, MatchesTheKnownAnswersOfRandom123) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(
      Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(SamplerTest, NegativeZeroTiesWithZero) {
  EXPECT_EQ(SampleToken({-0.0F, 0.0F}, Params(0.0F)).id, 0);
  EXPECT_EQ(SampleToken({0.0F, -0.0F}, Params(0.0F)).id, 0);
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_NE(SampleToken({1.0F, 2.0F, -0.0F, 0.0F}, Params(5.0F, 3), i).id, 3);
  }
}

TEST(SamplerTest, TopPKeepsNoMoreTokensThanReachItExactly) {
  const std::vector<float> logits(4, 1.0F);
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_LE(SampleToken(logits, Params(1.0F, 0, 0.5F), i).id, 1);
    EXPECT_LE(SampleToken(logits, Params(1.0F, 0, 0.75F), i).id, 2);
  }
}

TEST(SamplerTest, AgreesWithThePlainDefinition) {
  std::mt19937 random(3);
  for (const size_t vocab_size : {1U, 2U, 3U, 5U, 64U, 256U, 1001U}) {
    for (int round = 0; round < 300; ++round) {
      std::vector<float> logits = RandomLogits(random, vocab_size, round % 3 == 0 ? 0.1 : 4.0);
      // Every third round has many ties.
      if (round % 3 == 1)
        std::for_each(logits.begin(), logits.end(), [](float& l) { l = std::round(l); });
      SamplingParams params = Params(0.1F + 0.05F * static_cast<float>(random() % 60));
      if (random() % 2 == 0) params.top_k = static_cast<int32_t>(random() % (vocab_size + 3));
      if (random() % 2 == 0) params.top_p = 0.01F * static_cast<float>(1 + random() % 100);
      if (random() % 2 == 0) params.min_p = 0.0101F * static_cast<float>(random() % 99);
      if (random() % 10 == 0) params.min_p = 1.0F;  // only the best and its equals
      if (random() % 2 == 0)
        params.repetition_penalty = 0.1F * static_cast<float>(1 + random() % 30);
      if (random() % 2 == 0) params.presence_penalty = 0.1F * static_cast<float>(random() % 41) - 2;
      if (random() % 2 == 0)
        params.frequency_penalty = 0.1F * static_cast<float>(random() % 41) - 2;
      if (random() % 8 == 0) params.temperature = 0.0F;
      if (random() % 2 == 0) params.penalty_decay = 0.01F * static_cast<float>(1 + random() % 100);
      params.temperature_last = random() % 2 == 0;
      const History history = RandomHistory(random, vocab_size);
      params.seed = uint64_t{random()} << 32 | random();
      const uint64_t output_index = uint64_t{random()} << (random() % 8);
      params.rules = RandomRules(random, vocab_size);
      params.ends_from = output_index + random() % 3;
      EXPECT_EQ(SampleToken(logits, params, output_index,
                            history.Counts(params, output_index, vocab_size))
                    .id,
                NaiveSample(logits, params, output_index, history))
          << vocab_size << " tokens, round " << round << ", top_k " << params.top_k << ", top_p "
          << params.top_p << ", min_p " << params.min_p << ", repetition "
          << params.repetition_penalty << ", decay " << params.penalty_decay
          << (params.temperature_last ? ", temperature last" : "")
          << (params.rules != nullptr ? ", rules" : "");
    }
  }
}

std::shared_ptr<const LogitRules> Rules(std::vector<LogitRule> rules, bool only_these = false) {
  return std::make_shared<LogitRules>(LogitRules{std::move(rules), only_these});
}

TEST(SamplerTest, LogprobsIgnoreRules) {
  const std::vector<float> logits = {1.0F, 2.0F, 0.5F};
  SamplingParams params = Params(0.0F);
  params.top_logprobs = 3;
  const SampledToken plain = SampleToken(logits, params);
  params.rules = Rules({{.id = 2, .bias = 50.0F}}, /*only_these=*/true);
  const SampledToken token = SampleToken(logits, params);
  EXPECT_EQ(token.id, 2);
  EXPECT_EQ(token.logprob, plain.top[2].logprob);
  ASSERT_EQ(token.top.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(token.top[i].logprob, plain.top[i].logprob);
}

TEST(SamplerTest, WithoutALogitForTheAllowedTokensThereIsNoToken) {
  SamplingParams params = Params(1.0F);
  params.rules = Rules({{.id = 1, .bias = 100.0F}}, /*only_these=*/true);
  const std::vector<float> logits = {1.0F, -kInfinity};
  Sampler sampler;
  SampledToken token;
  EXPECT_EQ(sampler.Sample(logits.data(), 2, params, nullptr, 0, &token).code(),
            absl::StatusCode::kInternal);
}

// Chi-square with fixed seeds: the same numbers on every run.
TEST(SamplerTest, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const std::vector<float> logits = {1.0F, 0.0F, -1.0F, 2.0F, 0.5F, -2.0F, 1.5F, 0.25F};
  constexpr int kDraws = 40'000;
  for (const float temperature : {0.5F, 1.0F, 3.0F}) {
    std::vector<double> expected;
    for (const float logit : logits) expected.push_back(std::exp(double{logit} / temperature));
    const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
    std::vector<int> counts(logits.size());
    for (uint64_t i = 0; i < kDraws; ++i) {
      const SamplingParams params = Params(temperature, 0, 1.0F, 99);
      ++counts[static_cast<size_t>(SampleToken(logits, params, i).id)];
    }
    double chi_square = 0.0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double mean = kDraws * expected[i] / total;
      chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
    // 7 degrees of freedom: above 24.3 with a probability of 0.001.
    EXPECT_LT(chi_square, 24.3) << "temperature " << temperature;
  }
}

TEST(SamplerTest, DrawsDoNotDependOnWhatTheSamplerDidBefore) {
  std::mt19937 random(4);
  const std::vector<float> logits = RandomLogits(random, 300, 2.0);
  const SamplingParams params = Params(0.8F, 40, 0.9F, 11);
  Sampler used;
  SampledToken token;
  for (int i = 200; i-- > 0;) {
    // In between, the sampler draws from other sizes and with other parameters.
    const std::vector<float> other = RandomLogits(random, 1 + random() % 700, 3.0);
    SamplingParams other_params = Params(1.3F, static_cast<int32_t>(random() % 50), 0.5F);
    other_params.top_logprobs = static_cast<int32_t>(random() % 5);
    ASSERT_TRUE(used.Sample(other.data(), static_cast<int64_t>(other.size()), other_params, nullptr,
                            3, &token)
                    .ok());
    ASSERT_TRUE(
        used.Sample(logits.data(), 300, params, nullptr, static_cast<uint64_t>(i), &token).ok());
    EXPECT_EQ(token.id, SampleToken(logits, params, static_cast<uint64_t>(i)).id);
    EXPECT_TRUE(token.top.empty());
    EXPECT_EQ(token.logprob, 0.0F);
  }
}

TEST(SamplerTest, LogprobsAreThoseOfTheRawLogits) {
  std::mt19937 random(5);
  const std::vector<float> logits = RandomLogits(random, 50, 3.0);
  SamplingParams params = Params(0.3F, 4, 0.5F);
  params.top_logprobs = 50;
  const SampledToken token = SampleToken(logits, params);
  ASSERT_EQ(token.top.size(), 50U);
  double sum = 0.0;
  for (size_t i = 0; i < token.top.size(); ++i) {
    sum += std::exp(double{token.top[i].logprob});
    if (i > 0) {
      EXPECT_GE(token.top[i - 1].logprob, token.top[i].logprob);
    }
    const float difference =
        logits[static_cast<size_t>(token.top[i].id)] - logits[static_cast<size_t>(token.top[0].id)];
    EXPECT_NEAR(token.top[i].logprob - token.top[0].logprob, difference, 1e-5);
    if (token.top[i].id == token.id) {
      EXPECT_EQ(token.top[i].logprob, token.logprob);
    }
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);
  EXPECT_EQ(token.top[0].id, SampleToken(logits, Params(0.0F)).id);
}

TEST(SamplerTest, ReportsAsManyLogprobsAsAskedFor) {
  const std::vector<float> logits = {0.0F, 1.0F, 1.0F, -kInfinity};
  SamplingParams params = Params(0.0F);
  EXPECT_EQ(SampleToken(logits, params).logprob, 0.0F);
  params.top_logprobs = 0;
  SampledToken token = SampleToken(logits, params);
  EXPECT_NEAR(token.logprob, 1.0 - std::log(1.0 + 2.0 * std::exp(1.0)), 1e-6);
  EXPECT_TRUE(token.top.empty());
  params.top_logprobs = 2;
  token = SampleToken(logits, params);
  ASSERT_EQ(token.top.size(), 2U);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_EQ(token.top[1].id, 2);
  params.top_logprobs = 20;
  EXPECT_EQ(SampleToken(logits, params).top.size(), 3U);
}

TEST(SamplerTest, LogprobsIgnorePenaltiesButTheGreedyChoiceDoesNot) {
  const std::vector<float> logits = {1.0F, 2.0F, 0.5F};
  SamplingParams params = Params(0.0F);
  params.top_logprobs = 3;
  const SampledToken plain = SampleToken(logits, params);
  params.presence_penalty = 1.5F;
  const SampledToken token =
      SampleToken(logits, params, 0, {{}, WithSample({}, 1.0F, 0, true), {}});
  EXPECT_EQ(plain.id, 1);
  EXPECT_EQ(token.id, 0);
  ASSERT_EQ(token.top.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(token.top[i].id, plain.top[i].id);
    EXPECT_EQ(token.top[i].logprob, plain.top[i].logprob);
  }
  EXPECT_EQ(token.logprob, plain.top[1].logprob);
}

TEST(SamplerTest, NanAndInfinityNeverCrashNorLeaveTheVocabulary) {
  std::mt19937 random(6);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits = RandomLogits(random, 1 + random() % 40, 5.0);
    bool any = false;
    for (float& logit : logits) {
      const auto kind = random() % 8;
      if (kind == 0) logit = kNan;
      if (kind == 1) logit = -kInfinity;
      if (kind == 2) logit = kInfinity;
      if (kind == 3) logit = std::numeric_limits<float>::lowest();
      if (kind == 4) logit = std::numeric_limits<float>::denorm_min();
      any = any || logit > -kInfinity;
    }
    SamplingParams params =
        Params(round % 2 == 0 ? 0.0F : 1e-30F * std::pow(10.0F, static_cast<float>(random() % 32)),
               static_cast<int32_t>(random() % 5), static_cast<float>(random() % 3) * 0.5F);
    params.top_logprobs = static_cast<int32_t>(random() % 4);
    Sampler sampler;
    SampledToken token;
    const absl::Status status = sampler.Sample(logits.data(), static_cast<int64_t>(logits.size()),
                                               params, nullptr, 0, &token);
    ASSERT_GE(token.id, 0);
    ASSERT_LT(token.id, static_cast<TokenId>(logits.size()));
    EXPECT_EQ(status.code(), any ? absl::StatusCode::kOk : absl::StatusCode::kInternal);
    if (any) {
      EXPECT_GT(logits[static_cast<size_t>(token.id)], -kInfinity);
    }
    EXPECT_FALSE(std::isnan(token.logprob));
  }
}

// Pins the random stream: a change of these numbers changes every seeded answer ever given.
TEST(SamplerTest, SeededStreamStaysTheSameForever) {
  std::vector<float> logits(256);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 37 % 101) / 25.0F;
  std::vector<TokenId> ids;
  for (uint64_t i = 0; i < 12; ++i) {
    ids.push_back(SampleToken(logits, Params(0.9F, 100, 0.95F, 20261121), i).id);
  }
  EXPECT_THAT(ids, ElementsAre(95, 90, 207, 5, 158, 73, 180, 196, 30, 207, 27, 120));
}

// On devices that know only rules, the bans of a row are merged into the rules of the sequence.
TEST(SamplerTest, BansAgreeWithRulesThatBanTheToken) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    const size_t vocab_size = 1 + random() % 40;
    const std::vector<float> logits = RandomLogits(random, vocab_size, 2.0);
    const History history = RandomHistory(random, vocab_size);
    SamplingParams params = Params(random() % 3 == 0 ? 0.0F : 1.5F, 0, 1.0F, random());
    params.repetition_penalty = random() % 2 == 0 ? 1.0F : 1.7F;
    params.rules = RandomRules(random, vocab_size);
    params.ends_from = random() % 2;
    std::vector<TokenId> banned;
    for (TokenId id = 0; id < static_cast<TokenId>(vocab_size); ++id) {
      if (random() % 3 == 0) banned.push_back(id);
    }
    const std::vector<TokenCount> counts = history.Counts(params, 100, vocab_size);
    std::vector<LogitRule> merged(kMaxLogitRules);
    merged.resize(static_cast<size_t>(RulesWithBans(params.rules.get(), banned, merged.data())));
    SamplingParams as_rules = params;
    as_rules.rules = std::make_shared<const LogitRules>(
        LogitRules{merged, params.rules != nullptr && params.rules->only_these});
    Sampler sampler;
    SampledToken token;
    SampledToken expected;
    const auto size = static_cast<int64_t>(vocab_size);
    const absl::Status status =
        sampler.Sample(logits.data(), size, params, counts.data(), 0, &token, banned);
    const absl::Status as_one =
        sampler.Sample(logits.data(), size, as_rules, counts.data(), 0, &expected);
    ASSERT_EQ(status.code(), as_one.code());
    if (!status.ok()) continue;
    ASSERT_EQ(token.id, expected.id);
    ASSERT_EQ(std::count(banned.begin(), banned.end(), token.id), 0);
    // Each id occurs once, in ascending order, because the rules are looked up that way.
    for (size_t i = 1; i < merged.size(); ++i) ASSERT_LT(merged[i - 1].id, merged[i].id);
  }
}

}  // namespace
}  // namespace aft
