#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Counts the streams that gRPC has not finished sending. gRPC's own shutdown cannot tell them from
// idle connections, for which it would wait until its deadline. Thread-safe.
class ActiveCalls {
 public:
  void Add() {
    MutexLock lock(mutex_);
    ++count_;
  }

  void Remove() {
    MutexLock lock(mutex_);
    if (--count_ == 0) changed_.NotifyAll();
  }

  // Returns when there is none, or at `deadline`.
  void WaitForNone(TimePoint deadline) {
    MutexLock lock(mutex_);
    while (count_ > 0 && changed_.WaitUntil(mutex_, deadline)) {
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server
