#include "client/aftload/schedule.h"

namespace aft::client {

Schedule::Schedule(const LoadOptions& options, Clock::time_point start)
    : rate_(options.rate),
      max_requests_(options.requests),
      start_(start),
      end_(start + options.duration),
      random_(options.seed) {}

std::optional<Schedule::Slot> Schedule::Next() {
  MutexLock lock(mutex_);
  if (next_index_ >= max_requests_) return std::nullopt;
  Clock::time_point time;
  if (rate_ > 0) {
    next_offset_ +=
        std::chrono::duration<double>(std::exponential_distribution<double>(rate_)(random_));
    time = start_ + std::chrono::duration_cast<Clock::duration>(next_offset_);
  } else {
    time = Clock::now();
  }
  if (time >= end_) return std::nullopt;
  return Slot{.index = next_index_++, .time = time};
}

}  // namespace aft::client
