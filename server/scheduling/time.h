#pragma once

#include <chrono>

namespace aft::server {

// A time of the monotonic clock, by which all deadlines and timings are measured. server/scheduling
// never reads the clock: its callers pass the time.
using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace aft::server
