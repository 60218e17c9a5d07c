#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace aft::client {

class CancelScope;

// Ends calls from outside. Every call with this token, running or future, ends with CANCELLED, and
// the server is told. Must outlive those calls.
//
// Thread-safety: any thread may call any method. Not async-signal-safe: cancel from a thread that
// waits for the signal (client/tool/interrupt.h), not from a signal handler.
class CancelToken {
 public:
  CancelToken() = default;

  // Is final. Calling it again does nothing.
  void Cancel();
  bool cancelled() const;
  // Blocks until the token is cancelled, but not longer than `time`.
  void WaitFor(std::chrono::milliseconds time) const;

 private:
  friend class CancelScope;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<const CancelScope*> calls_ ABSL_GUARDED_BY(mutex_);
};

// While it exists, `token` (may be null) cancels the call of `context`, or calls `cancel` on the
// cancelling thread. `cancel` must not block. Internal to the library and to aftload.
class CancelScope {
 public:
  CancelScope(CancelToken* token, grpc::ClientContext& context);
  CancelScope(CancelToken* token, std::function<void()> cancel);
  ~CancelScope();
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  friend class CancelToken;
  CancelToken* const token_;
  const std::function<void()> cancel_;
};

}  // namespace aft::client
