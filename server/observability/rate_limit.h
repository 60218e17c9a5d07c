#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace aft::server {

// Lets `per_second` events a second pass, and counts the others. Thread-safe.
class RateLimit {
 public:
  explicit RateLimit(int per_second) : per_second_(per_second) {}

  // nullopt: this event is left out. Otherwise it passes, and the number of events that were left
  // out since the last one that passed is returned. `now` never goes back.
  std::optional<uint64_t> Pass(std::chrono::steady_clock::time_point now) {
    MutexLock lock(mutex_);
    if (now - second_ >= std::chrono::seconds(1)) {
      second_ = now;
      passed_ = 0;
    }
    if (passed_ == per_second_) {
      ++left_out_;
      return std::nullopt;
    }
    ++passed_;
    return std::exchange(left_out_, 0);
  }

 private:
  const int per_second_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point second_ ABSL_GUARDED_BY(mutex_);  // when it began
  int passed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server
