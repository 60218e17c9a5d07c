#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/config/client.h"
#include "server/scheduling/fair_queue.h"

namespace aft::server {

// A few threads that parse and tokenise, so that gRPC's threads never do. They serve clients in
// turn, weighted by the bytes of their messages and of the answers made here. The long messages of
// one client leave one thread to the others. The memory ledger bounds the waiting tasks, because it
// was charged for their messages. Thread-safe.
class DecodePool {
 public:
  static constexpr size_t kLongMessage = size_t{64} << 10;

  DecodePool();
  // Runs all tasks that were added, then returns.
  ~DecodePool();

  // Runs `task` soon, for a message of `bytes` of that client. An exception is logged and ends only
  // the task: a call catches its own exceptions (Catching).
  void Add(const Client& client, size_t bytes, std::function<void()> task);
  // As Add, for a task that returns the size in bytes of an answer that it has made, or 0.
  void AddAnswer(const Client& client, size_t bytes, std::function<size_t()> task);

 private:
  struct Task;

  void End();
  FairItem* Next(TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  mutable Mutex mutex_;
  CondVar changed_;
  FairQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace aft::server
