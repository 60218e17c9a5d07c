#include "model/runtime/step_threads.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

using std::chrono::nanoseconds;

// A step in which each token takes `work`, shared by the threads, and each further thread costs
// `overhead`.
struct FakeMachine {
  int64_t work;
  int64_t overhead;
  std::set<std::pair<int64_t, int>> measured{};  // tokens, threads

  StepThreads Measure(int threads, int64_t most_tokens) {
    return *StepThreads::Measure(threads, most_tokens,
                                 [&](int64_t tokens, int used) -> absl::StatusOr<nanoseconds> {
                                   measured.insert({tokens, used});
                                   return nanoseconds(tokens * work / used + overhead * (used - 1));
                                 });
  }
};

TEST(StepThreadsTest, MoreThreadsComputeMoreTokens) {
  // Two threads save half of 100 ns a token and cost 300.
  const StepThreads two = FakeMachine{100, 300}.Measure(2, 64);
  EXPECT_EQ(two.ToString(), "1 thread below 8 tokens, then 2 threads");
  EXPECT_EQ(two.For(1), 1);
  EXPECT_EQ(two.For(7), 1);  // although two would be as fast from 6 on
  EXPECT_EQ(two.For(8), 2);
  EXPECT_EQ(two.For(1000), 2);

  const StepThreads six = FakeMachine{1000, 500}.Measure(6, 64);
  EXPECT_EQ(six.ToString(),
            "1 thread below 2 tokens, 2 threads below 8 tokens, 4 threads below 32 tokens, then 6 "
            "threads");
  EXPECT_EQ(six.For(7), 2);
  EXPECT_EQ(six.For(8), 4);
}

TEST(StepThreadsTest, OneThreadIsEnoughWhereTheOthersSaveNothing) {
  const StepThreads slow = FakeMachine{100, 1'000'000}.Measure(8, 64);
  EXPECT_EQ(slow.ToString(), "1 thread below 128 tokens, then 8 threads");  // more was not measured
  EXPECT_EQ(slow.For(64), 1);
  EXPECT_EQ(slow.For(127), 1);
  EXPECT_EQ(slow.For(128), 8);
  EXPECT_EQ((FakeMachine{0, 0}.Measure(8, 1).For(1)), 1);  // all are as fast
}

TEST(StepThreadsTest, MeasuringEndsWhenAllThreadsAreWorthIt) {
  FakeMachine large{1'000'000, 100};
  EXPECT_EQ(large.Measure(3, 64).ToString(), "3 threads");
  EXPECT_EQ(large.measured, (std::set<std::pair<int64_t, int>>{{1, 1}, {1, 2}, {1, 3}}));

  FakeMachine alone{100, 100};
  EXPECT_EQ(alone.Measure(1, 64).ToString(), "1 thread");
  EXPECT_TRUE(alone.measured.empty());
}

// The machine may be busy with other work while it loads a model.
TEST(StepThreadsTest, TheFastestOfSeveralStepsCounts) {
  // Steps of two threads take 500 ns instead of 1,000, but the first `slow` take ten times as long.
  const auto chosen = [](int slow) {
    std::map<int, int> steps;  // by threads
    return StepThreads::Measure(2, 1,
                                [&](int64_t, int threads) -> absl::StatusOr<nanoseconds> {
                                  const bool late = ++steps[threads] <= slow && threads == 2;
                                  return nanoseconds(late ? 10'000 : 1000 / threads);
                                })
        ->For(1);
  };
  EXPECT_EQ(chosen(3), 2);
  EXPECT_EQ(chosen(100), 1);
}

TEST(StepThreadsTest, AnErrorOfAStepEndsTheMeasurement) {
  const auto fails = [](int64_t tokens, int) -> absl::StatusOr<nanoseconds> {
    if (tokens == 2) return absl::InternalError("lost");
    return nanoseconds(1);
  };
  EXPECT_EQ(StepThreads::Measure(2, 64, fails).status(), absl::InternalError("lost"));
}

}  // namespace
}  // namespace aft
