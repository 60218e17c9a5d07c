#include "model/runtime/parallel.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace aft {
namespace {

TEST(ParallelExecutorTest, EveryItemIsVisitedOnceByOneOfItsThreads) {
  for (const int threads : {1, 2, 5}) {
    const ParallelExecutor executor(threads);
    ASSERT_EQ(executor.threads(), threads);
    for (const int64_t n : {0, 1, 2, 3, 17, 1000}) {
      for (const int64_t grain : {1, 4, 2000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
        std::atomic<int> small{0};
        std::atomic<int> ranges{0};
        executor.For(n, grain, [&](int64_t begin, int64_t end, int thread) {
          ASSERT_GE(thread, 0);
          ASSERT_LT(thread, threads);
          ++ranges;
          if (end - begin < grain) ++small;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1);
        EXPECT_TRUE(small == 0 || n < grain);
        EXPECT_LE(ranges, threads);
      }
    }
  }
}

TEST(ParallelExecutorTest, WhatThreadsWroteIsVisibleAfterwards) {
  const ParallelExecutor executor(4);
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 1; round <= 2000; ++round) {
    executor.For(64, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += round;
    });
    ASSERT_EQ(values[static_cast<size_t>(round % 64)], round * (round + 1) / 2);
  }
}

TEST(ParallelExecutorTest, ThreadNumbersAreNeverSharedAtOneTime) {
  const ParallelExecutor executor(3);
  for (int round = 0; round < 200; ++round) {
    std::mutex mutex;
    std::set<int> seen;
    executor.For(3, 1, [&](int64_t, int64_t, int thread) {
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_TRUE(seen.insert(thread).second);
    });
    EXPECT_EQ(seen.size(), 3U);
  }
}

}  // namespace
}  // namespace aft
