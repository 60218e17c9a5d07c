#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "server/scheduling/time.h"

namespace aft::server {

// One text as the batcher sees it.
struct BatchItem {
  int64_t tokens = 0;  // in [1, DelayBatcher::Limits::max_tokens]
  TimePoint arrival;
};

// Dynamic batching as pure logic: no thread, lock or clock.
//
// Texts run in the order in which they came, none is split. The batch at the front is full when it
// has max_rows texts or the next one would exceed max_tokens; it is ready to run then, or when its
// first text came max_delay ago. So a text waits for others only while the model is idle, and never
// longer than max_delay; while the model is busy, the next batch gathers by itself.
//
// Thread-compatible.
class DelayBatcher {
 public:
  struct Limits {
    int64_t max_rows = 0;
    int64_t max_tokens = 0;
    Duration max_delay{};
  };

  // REQUIRES: max_rows and max_tokens are at least 1.
  explicit DelayBatcher(const Limits& limits);

  // Appends a text. It must outlive its stay here.
  void Add(BatchItem& item);

  // Takes a text out that waits; nothing happens when it does not.
  void Remove(BatchItem& item);

  // From when on the batch at the front may run: TimePoint::min() when it is full,
  // TimePoint::max() when nothing waits.
  TimePoint ReadyAt() const;

  // Takes the batch at the front, ready or not; empty when nothing waits.
  std::vector<BatchItem*> Take();

  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }

 private:
  struct Front {
    size_t rows = 0;
    bool full = false;
  };
  Front FindFront() const;

  const Limits limits_;
  std::deque<BatchItem*> waiting_;
};

}  // namespace aft::server
