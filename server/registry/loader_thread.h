#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace aft::server {

// One thread that carries out orders to load and unload, one after the other, and the orders that
// wait for it. Thread-safety: all methods may be called from any thread.
class LoaderThread {
 public:
  // Does its work, or hears why it may not; once. Must not throw.
  using Task = std::function<void(const absl::Status& may)>;

  // At most this many wait.
  static constexpr size_t kMaxTasks = 64;

  ~LoaderThread() { Join(); }

  // `first` comes before all orders. REQUIRES: called at most once.
  void Start(std::function<void()> first);

  // `task` hears, here: UNAVAILABLE after Drain; RESOURCE_EXHAUSTED: too many wait already.
  void Order(Task task);

  // Refuses the orders that wait, and all that come. What is under way is carried out. Idempotent.
  void Drain();

  // Drain, and waits for the thread. Idempotent.
  void Join();

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex join_mutex_;  // one thread joins
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace aft::server
