#include "server/scheduling/step_pacer.h"

#include <algorithm>
#include <chrono>

#include "gtest/gtest.h"
#include "tests/property/random_inputs.h"

namespace aft::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(StepPacerTest, HasNoLimitWithoutATargetOrAMeasurement) {
  StepPacer pacer{milliseconds(20)};
  EXPECT_EQ(pacer.PromptTokens(), StepPacer::kNoLimit);
  EXPECT_EQ(pacer.prompt_token_seconds(), 0);
  pacer.Observe(4, 0, milliseconds(3));
  EXPECT_EQ(pacer.PromptTokens(), StepPacer::kNoLimit);
  StepPacer free{Duration::zero()};
  free.Observe(0, 10, milliseconds(10));
  EXPECT_EQ(free.PromptTokens(), StepPacer::kNoLimit);
  EXPECT_DOUBLE_EQ(free.prompt_token_seconds(), 1e-3);
}

TEST(StepPacerTest, LearnsWhatDecodesTakeAndWhatAPromptTokenAdds) {
  StepPacer pacer{milliseconds(20)};
  pacer.Observe(0, 100, milliseconds(50));
  EXPECT_EQ(pacer.PromptTokens(), 32);  // 16 of 20 ms, half a millisecond each
  StepPacer beside{milliseconds(20)};
  beside.Observe(4, 0, milliseconds(6));
  beside.Observe(4, 100, milliseconds(56));
  EXPECT_NEAR(beside.prompt_token_seconds(), 0.5e-3, 1e-12);
  EXPECT_NEAR(static_cast<double>(beside.PromptTokens()), 20, 1);
}

TEST(StepPacerTest, LeavesAQuarterOfTheirTimeWhenDecodesAloneTakeTheTarget) {
  StepPacer pacer{milliseconds(20)};
  pacer.Observe(0, 100, milliseconds(50));
  pacer.Observe(64, 0, milliseconds(30));
  EXPECT_EQ(pacer.PromptTokens(), 15);  // 7.5 ms
  // The limit rises again when steps show that decodes have become faster.
  for (int i = 0; i < 5; ++i) pacer.Observe(1, 1, milliseconds(2));
  EXPECT_GT(pacer.PromptTokens(), 20);
}

TEST(StepPacerTest, AStepThatStallsCountsForNoMoreThanSomeOthers) {
  StepPacer pacer{milliseconds(20)};
  for (int i = 0; i < 20; ++i) pacer.Observe(0, 100, milliseconds(10));
  for (int i = 0; i < 20; ++i) pacer.Observe(4, 0, milliseconds(2));
  pacer.Observe(0, 1, std::chrono::minutes(10));
  EXPECT_LT(pacer.prompt_token_seconds(), 2.5e-4);
  pacer.Observe(4, 0, std::chrono::minutes(10));
  EXPECT_GT(pacer.PromptTokens(), 0);
}

TEST(StepPacerTest, AFirstStepThatStalledIsForgottenWithTheNext) {
  StepPacer pacer{milliseconds(20)};
  pacer.Observe(0, 1, std::chrono::minutes(10));
  pacer.Observe(4, 100, milliseconds(10));
  EXPECT_DOUBLE_EQ(pacer.prompt_token_seconds(), 1e-4);
}

TEST(StepPacerTest, APromptThatSeemedToCostNothingIsNoMeasureOfTheNext) {
  StepPacer pacer{milliseconds(20)};
  pacer.Observe(4, 0, milliseconds(6));
  pacer.Observe(1, 100, milliseconds(2));  // shorter than the decodes before
  EXPECT_EQ(pacer.prompt_token_seconds(), 0);
  pacer.Observe(1, 100, milliseconds(12));
  EXPECT_GT(pacer.prompt_token_seconds(), 5e-5);
}

TEST(StepPacerTest, AMachineThatBecomesSlowIsLearnt) {
  StepPacer pacer{milliseconds(20)};
  for (int i = 0; i < 20; ++i) pacer.Observe(0, 100, milliseconds(1));
  for (int i = 0; i < 20; ++i) pacer.Observe(0, 100, milliseconds(1000));
  EXPECT_GT(pacer.prompt_token_seconds(), 5e-3);
}

// Steps have a random cost, with noise. Streams come and go while a long prompt is read.
TEST(StepPacerTest, MeetsTheTargetOnAnyMachine) {
  TestRandom random;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const double target = random.Uniform(2e-3, 50e-3);
    const double fixed = random.Uniform(0, target / 8);
    const double decode = random.Uniform(0, target / 200);
    const double token = random.Uniform(target / 3000, target / 30);
    const double noise = random.Uniform(0, 0.1);
    StepPacer pacer{std::chrono::duration_cast<Duration>(std::chrono::duration<double>(target))};
    const auto run = [&](int64_t decodes, int64_t tokens) {
      const double seconds =
          (fixed + decode * static_cast<double>(decodes) + token * static_cast<double>(tokens)) *
          (1 + random.Uniform(-noise, noise));
      pacer.Observe(decodes, tokens,
                    std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
      return seconds;
    };
    run(0, 1 + random.Below(64));  // the first request
    int64_t decodes = 1 + random.Below(4);
    for (int i = 0; i < 20; ++i) run(decodes, 0);
    for (int phase = 0; phase < 4; ++phase) {
      int over = 0;
      int under = 0;
      for (int step = 0; step < 200; ++step) {
        const int64_t tokens = std::max<int64_t>(pacer.PromptTokens(), 1);
        const double seconds = run(decodes, tokens);
        if (step < 60) continue;  // it may take 60 steps to learn
        over += seconds > target ? 1 : 0;
        under += seconds < target / 2 && static_cast<double>(tokens) * token < target / 2 ? 1 : 0;
      }
      EXPECT_LE(over, 1) << phase;
      EXPECT_LE(under, 1) << phase;
      decodes = 1 + random.Below(64);
    }
  }
}

}  // namespace
}  // namespace aft::server
