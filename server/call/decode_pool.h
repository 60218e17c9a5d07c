#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/config/client.h"
#include "server/scheduling/fair_queue.h"

namespace aft::server {

// A few threads that parse and tokenise, so that gRPC's never do. They serve clients in turn, by
// the bytes of their messages, and of the answers that they make here. A client's long messages
// leave one thread to others. What waits is bounded by the memory ledger, which was charged for it.
// Thread-safe.
class DecodePool {
 public:
  static constexpr size_t kLongMessage = size_t{64} << 10;

  DecodePool();
  // Runs all that was added, then returns.
  ~DecodePool();

  // Runs `task`, for a message of `bytes` of that client, soon. What it throws is logged, and ends
  // nothing but the task: calls answer for themselves (Catching).
  void Add(const Client& client, size_t bytes, std::function<void()> task);
  // The same of a task that returns the bytes of an answer that it has made; 0: none.
  void AddAnswer(const Client& client, size_t bytes, std::function<size_t()> task);

 private:
  struct Task;

  FairItem* Next(TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  mutable Mutex mutex_;
  CondVar changed_;
  FairQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace aft::server
