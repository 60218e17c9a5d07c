#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/periodic.h"
#include "grpcpp/server_context.h"
#include "server/observability/metrics.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Who sends that context may call.
using ClientCheck = absl::FunctionRef<absl::Status(const grpc::ServerContextBase&)>;

// What a call ends with whose client does not read.
inline absl::Status SlowClient() {
  return absl::ResourceExhaustedError("slow client: it did not read for limits.write_stall_ms");
}

// A stream that gRPC has not finished sending. Its reactor tells when operations begin and end; one
// that gets nowhere, because the client does not read, has the call cancelled.
class ActiveCall {
 public:
  virtual ~ActiveCall() = default;

 protected:
  // `context` lives until ContextGoes.
  explicit ActiveCall(grpc::CallbackServerContext& context) : context_(context) {}

  // Around every write, and before the end; of whoever may start operations.
  void OperationBegins();
  void OperationEnds() { Restart(TimePoint::max()); }

  // How long operations were under way; without one that is. Of whoever may start operations.
  Duration time_writing() const { return writing_; }

  // To be called first in OnDone.
  void ContextGoes();

  // Whether the call was cancelled for its client.
  bool stuck() const { return stuck_.load(); }

  // The call is cancelled now. context() is still there.
  virtual void OnStuck(Duration waited) = 0;

  // Its client may not call any more: the call is to end with `why`. context() may be gone.
  virtual void OnRevoked(const absl::Status& /*why*/) {}
  // Cancels the call, unless it is over.
  void TryCancel();

  grpc::CallbackServerContext& context() const { return context_; }

 private:
  friend class ActiveCalls;

  // Ends the operation, if there is one, and begins another at `since`; max(): none.
  void Restart(TimePoint since);
  // Returns whether it has cancelled the call.
  bool CancelIfStuck(TimePoint now, Duration longest);
  void EndIfRevoked(ClientCheck check);

  grpc::CallbackServerContext& context_;
  std::atomic<TimePoint> since_{TimePoint::max()};  // of the operation under way
  Duration writing_{};                              // by those that have ended
  std::atomic<bool> stuck_{false};
  Mutex context_mutex_;
  bool context_gone_ ABSL_GUARDED_BY(context_mutex_) = false;
};

// The streams that gRPC has not finished sending: owns them, and looks after those whose clients do
// not read. gRPC's own shutdown cannot tell them from idle connections, for which it would wait
// until its deadline. Thread-safe.
class ActiveCalls {
 public:
  // A call whose operation takes longer than `longest_operation` is cancelled, within a quarter of
  // that, and counted.
  ActiveCalls(Duration longest_operation, ServerMetrics& metrics);

  void Add(std::shared_ptr<ActiveCall> call);
  // May destroy the call.
  void Remove(const ActiveCall* call);

  // Who may call has changed: ends the calls whose clients do not pass `check` any more.
  void EndRevoked(ClientCheck check);

  // Returns when there is none, or at `deadline`.
  void WaitForNone(TimePoint deadline);

 private:
  void CancelStuck();
  std::vector<std::shared_ptr<ActiveCall>> calls() const;

  const Duration longest_operation_;
  ServerMetrics& metrics_;
  mutable Mutex mutex_;
  CondVar none_;  // the last call is gone
  std::unordered_map<const ActiveCall*, std::shared_ptr<ActiveCall>> calls_ ABSL_GUARDED_BY(mutex_);
  Periodic watch_;  // last: its thread uses all of the above
};

}  // namespace aft::server
