#ifndef AFT_CLIENT_AFTLOAD_SCHEDULE_H_
#define AFT_CLIENT_AFTLOAD_SCHEDULE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "client/aftload/load.h"

namespace aft::client {

// When requests are sent. A closed loop sends as soon as a stream is free; an open loop at the
// times of a Poisson process, whether a stream is free or not, so that a slow server cannot slow
// its own load. Thread-safe.
class Schedule {
 public:
  // Of options: rate, requests, duration and seed. No request is scheduled at start + duration or
  // later.
  Schedule(const LoadOptions& options, Clock::time_point start);

  struct Slot {
    uint64_t index = 0;      // from 0
    Clock::time_point time;  // in an open loop perhaps past: latencies count from here
  };
  // The next request; nothing once a bound is reached.
  std::optional<Slot> Next();

 private:
  const double rate_;
  const uint64_t max_requests_;
  const Clock::time_point start_;
  const Clock::time_point end_;
  Mutex mutex_;
  uint64_t next_index_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::duration<double> next_offset_ ABSL_GUARDED_BY(mutex_){0};
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTLOAD_SCHEDULE_H_
