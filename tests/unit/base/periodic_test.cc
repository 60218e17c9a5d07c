#include "base/periodic.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

TEST(PeriodicTest, CallsRepeatedlyOnAThreadOfTheGivenName) {
  const auto begin = std::chrono::steady_clock::now();
  constexpr auto kPeriod = std::chrono::milliseconds(2);
  std::atomic<int> calls = 0;
  char name[16] = {};
  std::thread::id thread;
  {
    const Periodic periodic("aft-test", kPeriod, [&] {
      if (calls++ > 0) return;
      thread = std::this_thread::get_id();
      pthread_getname_np(pthread_self(), name, sizeof(name));
    });
    while (calls < 3) std::this_thread::yield();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 3 * kPeriod);
  EXPECT_EQ(std::string(name), "aft-test");
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(PeriodicTest, DestructionDoesNotWaitForThePeriod) {
  std::atomic<int> calls = 0;
  {
    const Periodic periodic("aft-test", std::chrono::hours(1), [&] { ++calls; });
  }
  EXPECT_EQ(calls, 0);
}

TEST(PeriodicTest, DestructionWaitsForARunningCallAndNoOtherFollows) {
  Mutex mutex;
  CondVar changed;
  bool entered = false;
  bool released = false;
  int ended = 0;  // not guarded: it is written before the destruction ends, and not after
  {
    const Periodic periodic("aft-test", std::chrono::milliseconds(1), [&] {
      {
        MutexLock lock(mutex);
        entered = true;
        changed.NotifyAll();
        while (!released) changed.Wait(mutex);
      }
      ++ended;
    });
    MutexLock lock(mutex);
    while (!entered) changed.Wait(mutex);
    released = true;
    changed.NotifyAll();
  }
  EXPECT_GE(ended, 1);
}

TEST(PeriodicTest, ACallThatThrowsIsFollowedByOthers) {
  std::atomic<int> calls = 0;
  const Periodic periodic("aft-test", std::chrono::milliseconds(1), [&] {
    if (++calls < 3) throw std::bad_alloc();
  });
  while (calls < 4) std::this_thread::yield();
}

}  // namespace
}  // namespace aft
