#include "client/aftload/schedule.h"

namespace aft::client {

Schedule::Schedule(const Arrivals& arrivals, Clock::time_point start)
    : arrivals_(arrivals),
      start_(start),
      random_(arrivals.seed),
      gap_seconds_(arrivals.burstiness,
                   arrivals.rate > 0 ? 1 / (arrivals.rate * arrivals.burstiness) : 1) {}

std::optional<Schedule::Slot> Schedule::Next(Clock::time_point now) {
  if (next_index_ >= arrivals_.requests) return std::nullopt;
  if (arrivals_.rate > 0) {
    offset_ += std::chrono::duration<double>(gap_seconds_(random_));
    // Compared in seconds, because the gaps of a very uneven process may not fit a time_point.
    if (offset_ >= arrivals_.duration) return std::nullopt;
    now = start_ + std::chrono::duration_cast<Clock::duration>(offset_);
  } else if (now >= start_ + arrivals_.duration) {
    return std::nullopt;
  }
  return Slot{.index = next_index_++, .time = now};
}

}  // namespace aft::client
