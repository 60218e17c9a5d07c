#include "server/transport/active_calls.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace aft::server {

void ActiveCall::OperationBegins() { since_.store(std::chrono::steady_clock::now()); }

void ActiveCall::ContextGoes() {
  MutexLock lock(context_mutex_);
  context_gone_ = true;
}

bool ActiveCall::CancelIfStuck(TimePoint now, Duration longest) {
  const TimePoint since = since_.load();
  if (since > now - longest || stuck()) return false;
  // The clock also runs while the process is stopped, and the operation may end right after that.
  if (std::exchange(overdue_, since) != since) return false;
  MutexLock lock(context_mutex_);  // what TryCancel causes runs on threads of gRPC
  if (context_gone_) return false;
  stuck_.store(true);
  OnStuck(now - since);
  context_.TryCancel();
  return true;
}

void ActiveCall::TryCancel() {
  MutexLock lock(context_mutex_);
  if (!context_gone_) context_.TryCancel();
}

absl::StatusOr<std::shared_ptr<const Client>> ActiveCall::Identify(const ClientIdentity& identity) {
  MutexLock lock(context_mutex_);
  AFT_RETURN_IF_ERROR(FindClient(identity));
  return client_;
}

absl::Status ActiveCall::FindClient(const ClientIdentity& identity) {
  AFT_ASSIGN_OR_RETURN(auto client, identity.Find(FactsOf(context_)));
  if (client_ != nullptr && client->name != client_->name) {
    return absl::UnauthenticatedError("authorization: it is another client's now");
  }
  client_ = std::move(client);
  return needs_ ? needs_(*client_) : absl::OkStatus();
}

absl::Status ActiveCall::Require(Needs needs) {
  MutexLock lock(context_mutex_);
  needs_ = std::move(needs);
  return needs_(*client_);
}

void ActiveCall::CheckClient(const ClientIdentity& identity) {
  absl::Status status;
  std::shared_ptr<const Client> client;
  {
    MutexLock lock(context_mutex_);
    // A call that is not identified yet will use the newly read clients. Some calls never identify.
    if (context_gone_ || client_ == nullptr) return;
    status = FindClient(identity);
    client = client_;
  }
  status.ok() ? OnClient(client) : OnRevoked(status);
}

ActiveCalls::ActiveCalls(Duration longest_operation, ServerMetrics& metrics)
    : longest_operation_(longest_operation),
      metrics_(metrics),
      watch_("aft-calls", longest_operation / 8, [this] { CancelStuck(); }) {}

void ActiveCalls::Add(std::shared_ptr<ActiveCall> call) {
  const ActiveCall* const key = call.get();
  MutexLock lock(mutex_);
  calls_.emplace(key, std::move(call));
}

void ActiveCalls::Remove(const ActiveCall* call) {
  std::shared_ptr<ActiveCall> removed;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  const auto found = calls_.find(call);
  removed = std::move(found->second);
  calls_.erase(found);
  if (calls_.empty()) none_.NotifyAll();
}

void ActiveCalls::WaitForNone(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!calls_.empty() && none_.WaitUntil(mutex_, deadline)) {
  }
}

// Callers must use the copy without the lock: gRPC may end a call inside TryCancel.
std::vector<std::shared_ptr<ActiveCall>> ActiveCalls::calls() const {
  std::vector<std::shared_ptr<ActiveCall>> calls;
  MutexLock lock(mutex_);
  for (const auto& [key, call] : calls_) calls.push_back(call);
  return calls;
}

void ActiveCalls::CheckClients(const ClientIdentity& identity) {
  for (const auto& call : calls()) call->CheckClient(identity);
}

void ActiveCalls::EndAll(const absl::Status& why) {
  for (const auto& call : calls()) call->OnRevoked(why);
}

void ActiveCalls::CancelStuck() {
  const TimePoint now = std::chrono::steady_clock::now();
  for (const auto& call : calls()) {
    if (call->CancelIfStuck(now, longest_operation_)) metrics_.stuck_calls.Increment();
  }
}

}  // namespace aft::server
