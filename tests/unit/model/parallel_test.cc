#include "model/runtime/parallel.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "model/runtime/torch_guard.h"

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
        executor.For(n, grain, [&](int64_t begin, int64_t end, int thread) {
          ASSERT_GE(thread, 0);
          ASSERT_LT(thread, threads);
          if (end - begin < grain) ++small;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1);
        EXPECT_TRUE(small == 0 || n < grain);
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

// An executor may be destroyed whether or not its threads have gone to sleep.
TEST(ParallelExecutorTest, MayBeDestroyedAtAnyTime) {
  for (int round = 0; round < 300; ++round) {
    const ParallelExecutor executor(3);
    if (round % 3 == 0) executor.For(round, 1, [](int64_t, int64_t, int) {});
    for (int yields = 0; yields < round; ++yields) std::this_thread::yield();
  }
}

// Runs in a process of its own, whose address space has room for the stacks of only some of the
// threads. Sanitizers need that space themselves.
TEST(ParallelExecutorDeathTest, AThreadThatTheSystemRefusesIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's runtime does not live with RLIMIT_AS";
#endif
  const auto start = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto now = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE));
    const rlimit limit = {.rlim_cur = now + (rlim_t{64} << 20), .rlim_max = RLIM_INFINITY};
    AFT_CHECK(pages > 0 && setrlimit(RLIMIT_AS, &limit) == 0);
    const absl::Status status = GuardTorch([] {
      const ParallelExecutor executor(1000);
      return absl::OkStatus();
    });
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::_Exit(0);
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(0), "RESOURCE_EXHAUSTED: cannot start a thread");
}

// For must not return before the last thread has left fn, which uses variables of the caller.
TEST(ParallelExecutorTest, ForThrowsWhatAPieceOfAnyThreadThrowsOnceAllAreDone) {
  constexpr int kThreads = 3;
  const ParallelExecutor executor(kThreads);
  for (int throws = 0; throws < kThreads; ++throws) {
    for (int round = 0; round < 50; ++round) {
      constexpr int64_t kItems = 60;
      std::atomic<int64_t> done{0};
      std::atomic<bool> thrown{false};
      const auto run = [&](int64_t begin, int64_t end, int thread) {
        done += end - begin;
        if (thread == throws && !thrown.exchange(true)) throw std::bad_alloc();
        while (!thrown) std::this_thread::yield();  // so that the one that throws has a piece
      };
      EXPECT_THROW(executor.For(kItems, 1, run), std::bad_alloc);
      EXPECT_EQ(done, kItems);
    }
  }
  // The next For works as usual.
  std::atomic<int64_t> done{0};
  executor.For(60, 1, [&](int64_t begin, int64_t end, int) { done += end - begin; });
  EXPECT_EQ(done, 60);
}

TEST(ParallelExecutorTest, OneOfSeveralExceptionsIsThrown) {
  const ParallelExecutor executor(4);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(executor.For(64, 1, [](int64_t, int64_t, int) { throw std::bad_alloc(); }),
                 std::bad_alloc);
  }
}

// Each thread has its own scratch memory, which its number selects.
TEST(ParallelExecutorTest, ThreadNumbersAreNeverSharedAtOneTime) {
  constexpr int kThreads = 3;
  const ParallelExecutor executor(kThreads);
  for (int round = 0; round < 200; ++round) {
    std::array<std::atomic<int>, kThreads> busy{};
    executor.For(30, 1, [&](int64_t, int64_t, int thread) {
      const auto number = static_cast<size_t>(thread);
      EXPECT_EQ(++busy[number], 1);
      std::this_thread::yield();
      --busy[number];
    });
  }
}

// A thread that is held up, here until all others have finished, delays only the piece that it has
// begun.
TEST(ParallelExecutorTest, OthersDoThePiecesOfAThreadThatIsHeldUp) {
  for (int held_up = 0; held_up < 3; ++held_up) {
    const ParallelExecutor executor(3);
    for (int round = 0; round < 50; ++round) {
      constexpr int64_t kItems = 60;
      std::atomic<int64_t> done{0};
      std::atomic<int64_t> held{0};
      executor.For(kItems, 1, [&](int64_t begin, int64_t end, int thread) {
        if (thread == held_up && held == 0) {
          held = end - begin;
          while (done < kItems - held) std::this_thread::yield();
        }
        done += end - begin;
      });
      EXPECT_EQ(done, kItems);
    }
  }
}

TEST(ParallelExecutorTest, OneThreadInUseGetsAllItemsAtOnce) {
  ParallelExecutor executor(4);
  executor.Use(1);
  std::atomic<int> calls{0};
  executor.For(60, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 60);
  });
  EXPECT_EQ(calls, 1);
}

// Calls For until all of the first `threads` threads are in it at the same time.
void MeetInFor(const ParallelExecutor& executor, int threads) {
  std::atomic<int> met{0};
  executor.For(threads, 1, [&](int64_t, int64_t, int) {
    ++met;
    while (met < threads) std::this_thread::yield();
  });
}

// Nanoseconds for which each thread of this process except the caller has run.
std::map<std::string, int64_t> TimesOfOtherThreads() {
  std::map<std::string, int64_t> times;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string id = task.path().filename();
    if (id == std::to_string(gettid())) continue;
    std::ifstream(task.path() / "schedstat") >> times[id];
  }
  return times;
}

TEST(ParallelExecutorTest, ThreadsThatAreNotUsedSleepUntilTheyAreUsedAgain) {
  constexpr int kThreads = 4;
  const std::map<std::string, int64_t> of_others = TimesOfOtherThreads();
  ParallelExecutor executor(kThreads);
  const auto busy_threads = [&](int used) {
    executor.Use(used);
    std::map<std::string, int64_t> before;
    for (int i = 0; i < 2; ++i) {  // at the first time they may still be on their way to sleep
      before = TimesOfOtherThreads();
      constexpr auto kCaller = std::chrono::milliseconds(30);  // of its own time
      const std::clock_t start = std::clock();
      while (std::clock() - start < kCaller.count() * CLOCKS_PER_SEC / 1000) {
        executor.For(kThreads, 1, [&](int64_t, int64_t, int) {});
      }
    }
    int busy = 0;
    for (const auto& [id, time] : TimesOfOtherThreads()) {
      if (of_others.count(id) == 0 && time - before[id] > 1'000'000) ++busy;
    }
    return busy;
  };
  for (int round = 0; round < 20; ++round) {
    executor.Use(kThreads);
    MeetInFor(executor, kThreads);
    executor.Use(2);
    MeetInFor(executor, 2);
    executor.Use(1);
    executor.For(60, 1, [](int64_t, int64_t, int thread) { EXPECT_EQ(thread, 0); });
  }
  EXPECT_LE(busy_threads(1), 0);
  EXPECT_LE(busy_threads(2), 1);
}

// On a machine with more CPUs than a cpu_set_t holds, the caller's CPUs cannot even be read.
TEST(ParallelExecutorTest, WithoutCpusTheCallersCpusAreLeftAlone) {
  std::thread([] {  // its CPUs change
    const ParallelExecutor executor(1);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    {
      const ParallelExecutor::PlacedCaller placed(executor);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    }
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&after, &one));
  })
      .join();
}

TEST(ParallelExecutorTest, ThreadsRunOnTheCpusThatWereAskedFor) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) cpus.push_back(cpu);
  }
  std::reverse(cpus.begin(), cpus.end());
  std::thread([&] {  // PlaceCaller places this thread
    constexpr int kThreads = 3;
    const ParallelExecutor executor(kThreads, cpus);
    {
      const ParallelExecutor::PlacedCaller placed(executor);
      EXPECT_EQ(sched_getcpu(), cpus[0]);
    }
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&after, &allowed));
    executor.PlaceCaller();
    std::array<std::atomic<int>, kThreads> seen{};
    while (std::find(seen.begin(), seen.end(), 0) != seen.end()) {
      executor.For(30, 1, [&](int64_t, int64_t, int thread) {
        seen[static_cast<size_t>(thread)] = 1;
        EXPECT_EQ(sched_getcpu(), cpus[static_cast<size_t>(thread) % cpus.size()]);
        std::this_thread::yield();
      });
    }
  })
      .join();
}

}  // namespace
}  // namespace aft
