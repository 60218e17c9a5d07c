#pragma once

#include <chrono>

namespace aft::server {

// The monotonic clock of all deadlines and timings. Always passed in as a value; only server/engine
// and server/api read it.
using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace aft::server
