#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/periodic.h"
#include "grpcpp/server_context.h"
#include "server/config/client.h"
#include "server/observability/metrics.h"
#include "server/scheduling/time.h"
#include "server/transport/client_identity.h"

namespace aft::server {

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
  void OperationEnds() { since_.store(TimePoint::max()); }

  // To be called first in OnDone.
  void ContextGoes();

  // Whether the call was cancelled for its client.
  bool stuck() const { return stuck_.load(); }

  // The call is cancelled now. context() is still there.
  virtual void OnStuck(Duration waited) = 0;

  // Who calls, as `identity` says; the call is that client's from then on. Errors as
  // ClientIdentity::Find. To be called while context() is there. A call that never asks has no
  // client, and hears nothing of the following.
  absl::StatusOr<std::shared_ptr<const Client>> Identify(const ClientIdentity& identity);

  // What the call needs of its client for as long as it runs: returns whether the client, as it was
  // last read, has it; OnRevoked hears when it no longer has. The last `needs` counts. It is called
  // with a lock held. REQUIRES: Identify has found the client. Any thread may call it.
  using Needs = std::function<absl::Status(const Client&)>;
  absl::Status Require(Needs needs);

  // Its client may not make this call any more: the call is to end with `why`, UNAUTHENTICATED or
  // what Needs returned. context() may be gone.
  virtual void OnRevoked(const absl::Status& why) = 0;
  // The file of clients was read again and this is what it says of the client. For a call that
  // serves several requests, each with needs of its own.
  virtual void OnClient(const std::shared_ptr<const Client>& /*client*/) {}
  // Cancels the call, unless it is over.
  void TryCancel();

  grpc::CallbackServerContext& context() const { return context_; }

 private:
  friend class ActiveCalls;

  // Returns whether it has cancelled the call.
  bool CancelIfStuck(TimePoint now, Duration longest);
  void CheckClient(const ClientIdentity& identity);
  absl::Status FindClient(const ClientIdentity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(context_mutex_);

  grpc::CallbackServerContext& context_;
  std::atomic<TimePoint> since_{TimePoint::max()};  // of the operation under way
  std::atomic<bool> stuck_{false};
  Mutex context_mutex_;
  bool context_gone_ ABSL_GUARDED_BY(context_mutex_) = false;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(context_mutex_);  // as last read
  Needs needs_ ABSL_GUARDED_BY(context_mutex_);
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

  // The clients of `identity` were read again: ends the calls that theirs may not make any more.
  void CheckClients(const ClientIdentity& identity);

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
