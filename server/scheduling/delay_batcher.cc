#include "server/scheduling/delay_batcher.h"

#include <algorithm>

#include "base/check.h"

namespace aft::server {

DelayBatcher::DelayBatcher(const Limits& limits) : limits_(limits) {
  AFT_CHECK(limits.max_rows >= 1 && limits.max_tokens >= 1);
}

void DelayBatcher::Add(BatchItem& item) {
  AFT_CHECK(item.tokens >= 1 && item.tokens <= limits_.max_tokens);
  waiting_.push_back(&item);
}

void DelayBatcher::Remove(BatchItem& item) {
  const auto found = std::find(waiting_.begin(), waiting_.end(), &item);
  if (found != waiting_.end()) waiting_.erase(found);
}

TimePoint DelayBatcher::ReadyAt() const {
  if (waiting_.empty()) return TimePoint::max();
  return FindFront().full ? TimePoint::min() : waiting_.front()->arrival + limits_.max_delay;
}

std::vector<BatchItem*> DelayBatcher::Take() {
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(FindFront().rows);
  std::vector<BatchItem*> batch(waiting_.begin(), end);
  waiting_.erase(waiting_.begin(), end);
  return batch;
}

DelayBatcher::Front DelayBatcher::FindFront() const {
  Front front;
  int64_t left = limits_.max_tokens;
  for (const BatchItem* item : waiting_) {
    front.full = static_cast<int64_t>(front.rows) == limits_.max_rows || item->tokens > left;
    if (front.full) return front;
    ++front.rows;
    left -= item->tokens;
  }
  front.full = static_cast<int64_t>(front.rows) == limits_.max_rows || left == 0;
  return front;
}

}  // namespace aft::server
