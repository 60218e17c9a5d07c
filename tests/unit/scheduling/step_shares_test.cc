#include "server/scheduling/step_shares.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/random_inputs.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

constexpr StepCost kElevenTokens = {.fixed = 11, .token = 1};
constexpr double kPlanned = 0.8;  // the planned part of the longest step

// The tokens in the step of each client, by the numbers of tokens that the clients could use.
// REQUIRES: these numbers ascend.
std::vector<int64_t> Shared(const StepCost& cost, const std::vector<int64_t>& tokens,
                            std::vector<double> weights = {}, double target = 0,
                            bool small = false) {
  weights.resize(tokens.size(), 1);
  std::vector<ClientShare> clients;
  for (size_t i = 0; i < tokens.size(); ++i) {
    clients.push_back({.weight = weights[i], .tokens = tokens[i], .oldest = i});
  }
  const bool cut = ShareStep(cost, target, small, clients);
  std::vector<int64_t> in_step(tokens.size());
  for (const ClientShare& client : clients) in_step[client.oldest] = client.in_step;
  EXPECT_EQ(cut, in_step != tokens);
  return in_step;
}

TEST(ShareStepTest, AClientWithOneTokenWaitsLessThanThreeTimesAsLongAsAlone) {
  EXPECT_THAT(Shared(kElevenTokens, {1, 100}), ElementsAre(1, 16));  // 11 + 17, and 12 alone
  EXPECT_THAT(Shared(kElevenTokens, {1, 16}), ElementsAre(1, 16));
  EXPECT_THAT(Shared(kElevenTokens, {10, 100}), ElementsAre(10, 29));  // 11 + 39, and 21 alone
}

TEST(ShareStepTest, WhatAClientDoesNotNeedGoesToTheOthers) {
  EXPECT_THAT(Shared(kElevenTokens, {1, 10, 100}), ElementsAre(1, 10, 16));  // 0.8 * 4 * 12 - 11
  EXPECT_THAT(Shared(kElevenTokens, {1, 80, 100}), ElementsAre(1, 13, 13));
}

TEST(ShareStepTest, NothingIsCutWhereNoClientHasMoreThanOthers) {
  EXPECT_THAT(Shared(kElevenTokens, {100}), ElementsAre(100));
  EXPECT_THAT(Shared(kElevenTokens, {50, 50}), ElementsAre(50, 50));
  EXPECT_THAT(Shared(kElevenTokens, {20, 60}, {1, 3}), ElementsAre(20, 60));
}

TEST(ShareStepTest, TokensThatCostNothingAreNeverCut) {
  EXPECT_THAT(Shared({.fixed = 1, .token = 0}, {1, 1000}), ElementsAre(1, 1000));
  EXPECT_THAT(Shared({.fixed = 1000, .token = 1}, {1, 1000}), ElementsAre(1, 1000));
}

TEST(ShareStepTest, WeightsCount) {
  // The second client has three times the weight: 11 + 37 is 0.8 * 5 * 12.
  EXPECT_THAT(Shared(kElevenTokens, {1, 100}, {1, 3}), ElementsAre(1, 36));
  EXPECT_THAT(Shared(kElevenTokens, {1, 90, 100}, {1, 1, 2}), ElementsAre(1, 12, 24));
  // Every client has at least one token.
  EXPECT_THAT(Shared({.fixed = 0, .token = 1}, {2, 9, 9}, {100, 1, 1}), ElementsAre(2, 1, 1));
}

TEST(ShareStepTest, AStepWithinTheTargetIsNotCut) {
  EXPECT_THAT(Shared(kElevenTokens, {1, 100}, {}, 112), ElementsAre(1, 100));
  EXPECT_THAT(Shared(kElevenTokens, {1, 100}, {}, 111), ElementsAre(1, 99));
}

TEST(ShareStepTest, InASmallStepAllHaveWhatTheSmallestHas) {
  EXPECT_THAT(Shared(kElevenTokens, {2, 5, 100}, {}, 0, true), ElementsAre(2, 2, 2));
  EXPECT_THAT(Shared(kElevenTokens, {2, 100}, {1, 1.6}, 0, true), ElementsAre(2, 4));
}

TEST(ShareStepTest, TheEqualClientThatHasWaitedLongerGetsTheOddToken) {
  for (const bool first : {false, true}) {
    std::vector<ClientShare> clients = {{.tokens = 1, .oldest = 9},
                                        {.tokens = 50, .oldest = first ? 1u : 2u},
                                        {.tokens = 50, .oldest = first ? 2u : 1u}};
    ASSERT_TRUE(ShareStep({.fixed = 11.5, .token = 1}, 0, false, clients));  // 28 tokens
    for (const ClientShare& client : clients) {
      EXPECT_EQ(client.in_step, client.tokens == 1 ? 1 : client.oldest == 1 ? 14 : 13);
    }
  }
}

// A step is no longer than allowed, and another token would make it too long. The smallest client
// has all of its tokens. If all weights are equal, no client that could use more has fewer tokens
// than others, apart from one odd token.
TEST(ShareStepTest, KeepsItsPromisesForRandomClients) {
  TestRandom random;
  int cuts = 0;
  for (int round = 0; round < 20'000; ++round) {
    SCOPED_TRACE(round);
    const StepCost cost = {.fixed = random.Uniform(0, 50), .token = random.Uniform(0.01, 5)};
    const double target = random.Below(2) == 0 ? 0 : random.Uniform(0, 500);
    std::vector<ClientShare> clients(static_cast<size_t>(1 + random.Below(6)));
    const bool alike_weights = random.Below(2) == 0;
    double weights = 0;
    int64_t tokens = 0;
    for (ClientShare& client : clients) {
      client.weight = alike_weights ? 1 : random.Uniform(0.1, 10);
      client.tokens = 1 + random.Below(random.Below(3) == 0 ? 4 : 100);
      weights += client.weight;
      tokens += client.tokens;
    }
    const bool cut = ShareStep(cost, target, false, clients);
    const ClientShare& smallest = clients.front();
    const double load = static_cast<double>(smallest.tokens) / smallest.weight;
    double alike = 0;  // tokens of a step in which all are as the smallest
    int64_t in_step = 0;
    for (const ClientShare& client : clients) {
      ASSERT_GE(static_cast<double>(client.tokens) / client.weight, load);
      ASSERT_GE(client.in_step, 1);
      ASSERT_LE(client.in_step, client.tokens);
      alike += std::min(std::ceil(load * client.weight), static_cast<double>(client.tokens));
      in_step += client.in_step;
    }
    ASSERT_EQ(cut, in_step < tokens);
    ASSERT_EQ(smallest.in_step, smallest.tokens);
    const double alone = cost.fixed + cost.token * static_cast<double>(smallest.tokens);
    const double longest = std::max({target, kPlanned * (1 + weights / smallest.weight) * alone,
                                     cost.fixed + cost.token * alike});
    ASSERT_LE(cost.fixed + cost.token * static_cast<double>(in_step), longest * (1 + 2e-6));
    if (!cut) continue;
    ++cuts;
    ASSERT_GT(cost.fixed + cost.token * static_cast<double>(in_step + 1), longest * (1 - 2e-6));
    for (const ClientShare& less : clients) {
      if (less.in_step == less.tokens || !alike_weights) continue;
      for (const ClientShare& more : clients) {
        ASSERT_LE(more.in_step, less.in_step + 1);
      }
    }
  }
  EXPECT_GT(cuts, 1000);  // steps were cut
}

Duration After(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

TEST(StepCostMeterTest, AssumesARatioUntilItHasSeenSmallSteps) {
  StepCostMeter meter;
  EXPECT_EQ(meter.cost().fixed, 16 * meter.cost().token);
  EXPECT_GT(meter.cost().token, 0);
  meter.Observe(false, 84, After(0.1), After(1));
  EXPECT_NEAR(meter.cost().token, 0.01, 1e-9);
  EXPECT_NEAR(meter.cost().fixed, 0.16, 1e-9);
}

// The cost of a step is random, with noise, and some steps stall. The meter starts without a
// measurement. Each step waits for a core for longer than it works.
TEST(StepCostMeterTest, FindsTheStepThatIsAsLongAsItMayBe) {
  TestRandom random;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    const double token = random.Uniform(1e-6, 1e-3);
    const double fixed = token * random.Uniform(0.2, 30);
    StepCostMeter meter;
    std::vector<ClientShare> clients;
    double worst = 0;
    double sum = 0;
    int steps = 0;
    for (int step = 0; step < 4000; ++step) {
      const bool small = step % 64 == 0;
      clients = {{.tokens = 1}, {.tokens = 100}};
      ShareStep(meter.cost(), 0, small, clients);
      const int64_t tokens = clients[0].in_step + clients[1].in_step;
      double seconds = (fixed + token * static_cast<double>(tokens)) * random.Uniform(0.9, 1.1);
      if (random.Below(100) == 0) seconds += 1000 * fixed;
      meter.Observe(small, tokens, After(seconds), After(seconds + random.Uniform(5, 50) * fixed));
      if (step < 1000 || small) continue;  // small steps are only for learning
      const double times = (fixed + token * static_cast<double>(tokens)) / (fixed + token);
      worst = std::max(worst, times);
      sum += times;
      ++steps;
    }
    const double longest = std::min(kPlanned * 3, (fixed + token * 101) / (fixed + token));
    EXPECT_NEAR(sum / steps, longest, 0.25 * longest);
    EXPECT_LT(worst, 3 * longest);
  }
}

// First a machine on which tokens cost nothing, then one on which they do.
TEST(StepCostMeterTest, UnlearnsThatTokensCostNothing) {
  StepCostMeter meter;
  for (int i = 0; i < 50; ++i) {
    meter.Observe(true, 2, After(1e-3), After(1e-3));
    meter.Observe(false, 100, After(1e-3), After(1e-3));
  }
  EXPECT_GT(meter.cost().fixed, 1000 * meter.cost().token);
  for (int i = 0; i < 50; ++i) {
    meter.Observe(true, 2, After(1e-3), After(1e-3));
    meter.Observe(false, 100, After(20e-3), After(20e-3));
  }
  EXPECT_LT(meter.cost().fixed, 5 * meter.cost().token);
}

}  // namespace
}  // namespace aft::server
