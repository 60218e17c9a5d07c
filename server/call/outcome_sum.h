#pragma once

#include <algorithm>

#include "server/engine/request.h"

namespace aft::server {

// A call whose sequences end one by one, as one: counts are sums, times those of the first to come
// and the last to end, and the first error is that of the call. `total`: of those before.
inline void AddOutcome(const Outcome& one, Outcome& total) {
  if (total.status.ok()) total.status = one.status;
  total.reason = one.reason;
  total.usage.prompt_tokens += one.usage.prompt_tokens;
  total.usage.generated_tokens += one.usage.generated_tokens;
  total.usage.scored_tokens += one.usage.scored_tokens;
  if (one.usage.prompt_tokens > 0) {  // what is said of the prompt comes with it
    total.usage.cached_tokens = one.usage.cached_tokens;
    total.usage.cache_miss = one.usage.cache_miss;
    total.usage.diverged_at = one.usage.diverged_at;
  }
  Timings& times = total.timings;
  times.queue = std::max(times.queue, one.timings.queue);
  times.total = std::max(times.total, one.timings.total);
  const Duration first = one.timings.first_token;
  if (times.first_token == Duration(0) || (first > Duration(0) && first < times.first_token)) {
    times.first_token = first;
  }
  // Texts that fill several steps still wait when the first ones end; the call does not any more.
  if (times.first_token > Duration(0)) times.queue = std::min(times.queue, times.first_token);
}

}  // namespace aft::server
