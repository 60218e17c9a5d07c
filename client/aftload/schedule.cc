#include "client/aftload/schedule.h"

namespace aft::client {

Schedule::Schedule(const Options& options) : options_(options), random_(options.seed) {}

std::optional<Schedule::Slot> Schedule::Next() {
  MutexLock lock(mutex_);
  if (next_index_ >= options_.max_requests) return std::nullopt;
  Clock::time_point time;
  if (options_.rate > 0) {
    next_offset_ += std::chrono::duration<double>(
        std::exponential_distribution<double>(options_.rate)(random_));
    time = options_.start + std::chrono::duration_cast<Clock::duration>(next_offset_);
  } else {
    time = Clock::now();
  }
  if (time >= options_.end) return std::nullopt;
  return Slot{.index = next_index_++, .time = time};
}

}  // namespace aft::client
