#include "server/rpc/retry_hint.h"

#include <algorithm>

namespace aft::server {
namespace {

constexpr double kWeight = 0.1;  // of the newest request
constexpr double kMinSeconds = 0.1;
constexpr double kMaxSeconds = 60.0;

}  // namespace

void RetryHint::Record(Duration running_time) {
  const double seconds = std::chrono::duration<double>(running_time).count();
  // Two threads at once may lose one of the updates: it is an estimate.
  const double mean = mean_seconds_.load(std::memory_order_relaxed);
  mean_seconds_.store(mean + kWeight * (seconds - mean), std::memory_order_relaxed);
}

std::chrono::milliseconds RetryHint::After(const EngineLoad& load) const {
  const double per_slot = static_cast<double>(load.waiting) / std::max(load.slots, 1);
  const double seconds = mean_seconds_.load(std::memory_order_relaxed) * 0.5 * per_slot;
  return std::chrono::milliseconds(
      static_cast<int64_t>(1000.0 * std::clamp(seconds, kMinSeconds, kMaxSeconds)));
}

}  // namespace aft::server
