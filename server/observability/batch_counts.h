#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/mutex.h"

namespace aft::server {

// Batches that ran without an error, by the number of their rows. Thread-safe.
class BatchCounts {
 public:
  struct Count {
    uint64_t batches = 0;
    std::chrono::nanoseconds time{};
  };

  void Add(size_t rows, std::chrono::nanoseconds time) {
    MutexLock lock(mutex_);
    Count& count = counts_[rows];
    ++count.batches;
    count.time += time;
  }
  std::map<size_t, Count> Get() const {
    MutexLock lock(mutex_);
    return counts_;
  }

 private:
  mutable Mutex mutex_;
  std::map<size_t, Count> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server
