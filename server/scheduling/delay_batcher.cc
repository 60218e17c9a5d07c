#include "server/scheduling/delay_batcher.h"

#include "base/check.h"

namespace aft::server {

DelayBatcher::DelayBatcher(const Limits& limits) : limits_(limits), queue_(limits.age) {
  AFT_CHECK(limits.max_rows >= 1 && limits.max_tokens >= 1);
}

void DelayBatcher::Add(BatchItem& item, TimePoint arrival) {
  AFT_CHECK(item.batch_tokens >= 1 && item.batch_tokens <= limits_.max_tokens);
  queue_.Push(item, arrival);
  tokens_ += item.batch_tokens;
}

void DelayBatcher::Remove(BatchItem& item) {
  if (!queue_.Contains(item)) return;
  queue_.Leave(item);
  tokens_ -= item.batch_tokens;
}

TimePoint DelayBatcher::ReadyAt() const {
  if (queue_.waiting() == 0) return TimePoint::max();
  const bool full = waiting() >= limits_.max_rows || tokens_ >= limits_.max_tokens;
  return full ? TimePoint::min() : queue_.oldest() + limits_.max_delay;
}

std::vector<BatchItem*> DelayBatcher::Take(TimePoint now) {
  std::vector<BatchItem*> batch;
  int64_t left = limits_.max_tokens;
  while (static_cast<int64_t>(batch.size()) < limits_.max_rows) {
    auto* const item = static_cast<BatchItem*>(queue_.Next(now));
    if (item == nullptr || item->batch_tokens > left) break;
    queue_.Serve(*item, now);
    queue_.Charge(*item, static_cast<double>(item->batch_tokens));
    queue_.Leave(*item);
    left -= item->batch_tokens;
    tokens_ -= item->batch_tokens;
    batch.push_back(item);
  }
  return batch;
}

}  // namespace aft::server
