#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace aft::server {

// A thread that executes orders to load and unload models, one after the other, and the queue of
// these orders. Thread-safe.
class LoaderThread {
 public:
  // A task is called once. It does its work if `may` is OK; otherwise `may` says why the order was
  // refused. An exception is logged and ends only the task.
  using Task = std::function<void(const absl::Status& may)>;

  // A limited order is refused while this many orders wait.
  static constexpr size_t kMaxTasks = 64;

  ~LoaderThread() { Join(); }

  // Starts the thread, which calls `first` before all orders. REQUIRES: called at most once.
  void Start(std::function<void()> first);

  // A refused `task` is called at once, on the calling thread, with UNAVAILABLE after Drain, or
  // with RESOURCE_EXHAUSTED if it is `limited` and too many wait already.
  void Order(Task task, bool limited = true);

  // Refuses the waiting orders and all later ones. The one in progress is completed. Idempotent.
  void Drain();

  // Calls Drain, and waits for the thread. Idempotent.
  void Join();

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex join_mutex_;  // only one thread joins
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace aft::server
