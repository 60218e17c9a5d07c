#pragma once

#include <algorithm>

#include "server/engine/request.h"

namespace aft::server {

// Adds the outcome of one sequence to the outcome of its call. Counts are added. The times are
// those of the sequence that was first to come and of the last one to end. The first error is the
// error of the call. `total` covers the sequences that ended before.
inline void AddOutcome(const Outcome& one, Outcome& total) {
  if (total.status.ok()) total.status = one.status;
  total.reason = one.reason;
  total.usage.prompt_tokens += one.usage.prompt_tokens;
  total.usage.generated_tokens += one.usage.generated_tokens;
  total.usage.scored_tokens += one.usage.scored_tokens;
  if (one.usage.prompt_tokens > 0) {  // set only in the outcome that counts the prompt
    if (total.usage.cached_tokens == 0) {
      total.usage.cache_miss = one.usage.cache_miss;
      total.usage.diverged_at = one.usage.diverged_at;
    }
    total.usage.cached_tokens += one.usage.cached_tokens;
  }
  Timings& times = total.timings;
  times.queue = std::max(times.queue, one.timings.queue);
  times.total = std::max(times.total, one.timings.total);
  const Duration first = one.timings.first_token;
  if (times.first_token == Duration(0) || (first > Duration(0) && first < times.first_token)) {
    times.first_token = first;
  }
  // If there are several texts, later ones may still wait when the first ones have tokens. The call
  // does not wait any more at that time.
  if (times.first_token > Duration(0)) times.queue = std::min(times.queue, times.first_token);
}

}  // namespace aft::server
