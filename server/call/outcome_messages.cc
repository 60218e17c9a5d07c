#include "server/call/outcome_messages.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace aft::server {
namespace {

static_assert(static_cast<int>(CacheMiss::kNone) == v1::CACHE_MISS_UNSPECIFIED &&
              static_cast<int>(CacheMiss::kCold) == v1::CACHE_MISS_COLD &&
              static_cast<int>(CacheMiss::kTooShort) == v1::CACHE_MISS_TOO_SHORT &&
              static_cast<int>(CacheMiss::kDiverged) == v1::CACHE_MISS_DIVERGED &&
              static_cast<int>(CacheMiss::kEvicted) == v1::CACHE_MISS_EVICTED);

uint64_t Microseconds(Duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  return static_cast<uint64_t>(std::max<int64_t>(count, 0));
}

}  // namespace

v1::Usage EncodeUsage(const Usage& usage) {
  v1::Usage message;
  message.set_prompt_tokens(usage.prompt_tokens);
  message.set_generated_tokens(usage.generated_tokens);
  message.set_scored_tokens(usage.scored_tokens);
  message.set_resumed_tokens(usage.resumed_tokens);
  message.set_cached_tokens(usage.cached_tokens);
  message.set_cache_miss(static_cast<v1::CacheMiss>(usage.cache_miss));
  message.set_diverged_at(usage.diverged_at);
  return message;
}

v1::Timings EncodeTimings(const Timings& timings) {
  v1::Timings message;
  message.set_queue_us(Microseconds(timings.queue));
  message.set_first_token_us(Microseconds(timings.first_token));
  message.set_total_us(Microseconds(timings.total));
  return message;
}

}  // namespace aft::server
