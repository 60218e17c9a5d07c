#pragma once

#include <atomic>
#include <chrono>

#include "server/scheduling/time.h"

namespace aft::server {

// A clock that stands still until a test moves it. Thread-safe.
class ManualClock {
 public:
  TimePoint Now() const { return TimePoint(Duration(ticks_.load())); }
  void Advance(Duration by) { ticks_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> ticks_{std::chrono::duration_cast<Duration>(std::chrono::hours(1))
                                        .count()};  // far from zero, like a real clock
};

}  // namespace aft::server
