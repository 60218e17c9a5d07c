#pragma once

#include <algorithm>
#include <chrono>

#include "server/scheduling/time.h"

namespace aft::server {

// Whether a client that cancelled at `cancelled_at` did so because its deadline had come. Such a
// cancellation can arrive before the deadline by the server's clock, for two reasons. The client's
// deadline was rounded up (by 1 % or a millisecond), and the request took time to arrive, which can
// be long on a busy machine.
inline bool EndedByDeadline(TimePoint cancelled_at, TimePoint arrival, TimePoint deadline) {
  if (deadline == TimePoint::max()) return false;
  const Duration allowed = deadline - arrival;
  const Duration slack = std::max<Duration>(
      std::min<Duration>(std::chrono::milliseconds(100), allowed / 4), allowed / 50);
  return cancelled_at + slack >= deadline;
}

}  // namespace aft::server
