#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduling/fair_queue.h"
#include "server/scheduling/time.h"

namespace aft::server {

// One text as the batcher sees it.
class BatchItem : public FairItem {
 public:
  // `tokens`: in [1, DelayBatcher::Limits::max_tokens]. `user`: as in FairItem.
  BatchItem(int64_t tokens, std::string client, double weight, ServiceClass service_class,
            std::string user = "")
      : FairItem(std::move(client), weight, service_class, std::move(user)), batch_tokens(tokens) {}

  const int64_t batch_tokens;
};

// Dynamic batching as pure logic: no thread, lock or clock.
//
// Texts run in the order of FairQueue, by class and by what their clients have had; none is split.
// The waiting texts make a full batch when they are max_rows texts or max_tokens tokens. A batch is
// ready to run when it is full, or when its oldest text came max_delay ago. So a text waits for
// others only while the model is idle, and never longer than max_delay; while the model is busy,
// the next batch gathers by itself. A batch ends before the first text that does not fit.
//
// Thread-compatible.
class DelayBatcher {
 public:
  struct Limits {
    int64_t max_rows = 0;
    int64_t max_tokens = 0;
    Duration max_delay{};
    Duration age{};  // see FairQueue
  };

  // REQUIRES: max_rows and max_tokens are at least 1.
  explicit DelayBatcher(const Limits& limits);

  // Adds a text that came at `arrival`. It must live until it is removed or taken. REQUIRES: 1 <=
  // item.batch_tokens <= max_tokens.
  void Add(BatchItem& item, TimePoint arrival);

  // Removes a text that waits; does nothing if it does not wait.
  void Remove(BatchItem& item);

  // The time from which a batch may run: TimePoint::min() when it is full, TimePoint::max() when no
  // text waits.
  TimePoint ReadyAt() const;

  // Takes the next batch, ready or not; empty when no text waits.
  std::vector<BatchItem*> Take(TimePoint now);

  int32_t waiting() const { return static_cast<int32_t>(queue_.waiting()); }

 private:
  const Limits limits_;
  FairQueue queue_;
  int64_t tokens_ = 0;  // of the waiting texts
};

}  // namespace aft::server
