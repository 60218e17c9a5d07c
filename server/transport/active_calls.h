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

// A call that gRPC has not finished sending. Its reactor reports when operations begin and end. If
// an operation takes too long, because the client does not read, the call is cancelled.
class ActiveCall {
 public:
  virtual ~ActiveCall() = default;

 protected:
  // `context` must live until ContextGoes.
  explicit ActiveCall(grpc::CallbackServerContext& context) : context_(context) {}

  // The thread that may start operations must call these around every write, and OperationBegins
  // before the end.
  void OperationBegins();
  void OperationEnds() { since_.store(TimePoint::max()); }

  // OnDone must call this first.
  void ContextGoes();

  // Whether the call was cancelled because its client did not read.
  bool stuck() const { return stuck_.load(); }

  // Is called when the call is being cancelled because its client did not read. context() still
  // exists.
  virtual void OnStuck(Duration waited) = 0;

  // Finds the client of the call with `identity`; from then on the call belongs to that client.
  // Errors as ClientIdentity::Find. REQUIRES: context() still exists. A call that never identifies
  // has no client, gets no call of OnClient, and gets OnRevoked only when the server stops.
  absl::StatusOr<std::shared_ptr<const Client>> Identify(const ClientIdentity& identity);

  // Sets what the call needs of its client for as long as it runs. `needs` returns whether the
  // client, as last read, has it. OnRevoked is called when that is no longer so. The last `needs`
  // counts, and is called with a lock held. REQUIRES: Identify has found the client. Any thread may
  // call it.
  using Needs = std::function<absl::Status(const Client&)>;
  absl::Status Require(Needs needs);

  // Is called when the call must end with `why`, as far as it has not ended: the client may not
  // make it any more (UNAUTHENTICATED or the error of Needs), or the server stops (UNAVAILABLE).
  // context() may be gone.
  virtual void OnRevoked(const absl::Status& why) = 0;
  // Is called when the file of clients was read again and has `client` for this call. Calls with
  // several requests use it, because each request has its own needs.
  virtual void OnClient(const std::shared_ptr<const Client>& /*client*/) {}
  // Cancels the call, unless it is over.
  void TryCancel();

  grpc::CallbackServerContext& context() const { return context_; }

 private:
  friend class ActiveCalls;

  // Cancels the call when an operation is overdue for the second time. Returns whether it has done
  // so.
  bool CancelIfStuck(TimePoint now, Duration longest);
  void CheckClient(const ClientIdentity& identity);
  absl::Status FindClient(const ClientIdentity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(context_mutex_);

  grpc::CallbackServerContext& context_;
  std::atomic<TimePoint> since_{TimePoint::max()};  // when the operation under way began
  std::atomic<bool> stuck_{false};
  TimePoint overdue_ = TimePoint::max();  // since_ of an operation that was found overdue once
  Mutex context_mutex_;
  bool context_gone_ ABSL_GUARDED_BY(context_mutex_) = false;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(context_mutex_);  // as last read
  Needs needs_ ABSL_GUARDED_BY(context_mutex_);
};

// Owns the calls that gRPC has not finished sending, and cancels those whose clients do not read.
// The shutdown of gRPC cannot tell such calls from idle connections, and would wait for those until
// its deadline. Thread-safe.
class ActiveCalls {
 public:
  // A call whose operation takes longer than `longest_operation` is cancelled and counted, at most
  // a quarter of that time later. If the process was stopped meanwhile, the operation still gets an
  // eighth of that time.
  ActiveCalls(Duration longest_operation, ServerMetrics& metrics);

  void Add(std::shared_ptr<ActiveCall> call);
  // May destroy the call.
  void Remove(const ActiveCall* call);

  // Ends the calls that their clients may not make any more. Must be called when the clients of
  // `identity` were read again.
  void CheckClients(const ClientIdentity& identity);

  // Returns when there are no calls, or at `deadline`.
  void WaitForNone(TimePoint deadline);

  // Ends all calls with `why`. They may still wait for their clients to read.
  void EndAll(const absl::Status& why);

 private:
  void CancelStuck();
  std::vector<std::shared_ptr<ActiveCall>> calls() const;

  const Duration longest_operation_;
  ServerMetrics& metrics_;
  mutable Mutex mutex_;
  CondVar none_;  // signals that the last call is gone
  std::unordered_map<const ActiveCall*, std::shared_ptr<ActiveCall>> calls_ ABSL_GUARDED_BY(mutex_);
  Periodic watch_;  // last: its thread uses all of the above
};

}  // namespace aft::server
