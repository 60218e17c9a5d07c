#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

#include "server/engine/request.h"

namespace aft::server {

// How long a refused client should wait: the time in which half of the queue moves into slots. It
// is computed from the average running time of requests. Thread-safe.
class RetryHint {
 public:
  // A request has ended after running (not waiting) for `running_time`.
  void Record(Duration running_time) {
    const double seconds = std::chrono::duration<double>(running_time).count();
    // Two threads at once may lose one of the updates, which is fine for an estimate.
    const double mean = mean_seconds_.load(std::memory_order_relaxed);
    mean_seconds_.store(mean + kWeight * (seconds - mean), std::memory_order_relaxed);
  }

  // Returns between 100 ms and a minute.
  std::chrono::milliseconds After(const EngineLoad& load) const {
    const double per_slot = static_cast<double>(load.waiting) / std::max(load.slots, 1);
    const double seconds = mean_seconds_.load(std::memory_order_relaxed) * 0.5 * per_slot;
    return std::chrono::milliseconds(static_cast<int64_t>(1000.0 * std::clamp(seconds, 0.1, 60.0)));
  }

 private:
  static constexpr double kWeight = 0.1;  // weight of the newest request

  std::atomic<double> mean_seconds_{1.0};
};

}  // namespace aft::server
