#pragma once

#include <deque>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "base/mutex.h"
#include "client/lib/call_options.h"
#include "client/lib/generate_listener.h"

namespace aft::client {

// Passes the events of a generation from gRPC's threads to the thread that waits for it. It keeps
// events until they are taken, which is at most the answer. Internal to the library; thread-safe.
class EventRelay : public GenerateListener {
 public:
  using Item = std::variant<v1::GenerateResponse, Resuming, Resumed, absl::Status>;

  Next OnEvent(const v1::GenerateResponse& event) override {
    Add(event);
    return {};
  }
  void OnResuming(const Resuming& resuming) { Add(resuming); }
  void OnResumed(const Resumed& resumed) { Add(resumed); }
  void OnEnd(const absl::Status& status) override { Add(status); }

  // Blocks until there is an item. The last item is the status.
  Item Take() {
    MutexLock lock(mutex_);
    while (items_.empty()) changed_.Wait(mutex_);
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  void Add(Item item) {
    MutexLock lock(mutex_);
    items_.push_back(std::move(item));
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::client
