#include "server/rpc/active_calls.h"

#include <chrono>
#include <utility>
#include <vector>

namespace aft::server {

void ActiveCall::OperationBegins() { Restart(std::chrono::steady_clock::now()); }

void ActiveCall::Restart(TimePoint since) {
  const TimePoint begun = since_.exchange(since);
  if (begun != TimePoint::max()) writing_ += std::chrono::steady_clock::now() - begun;
}

void ActiveCall::ContextGoes() {
  MutexLock lock(context_mutex_);
  context_gone_ = true;
}

bool ActiveCall::CancelIfStuck(TimePoint now, Duration longest) {
  const TimePoint since = since_.load();
  if (since > now - longest || stuck()) return false;
  MutexLock lock(context_mutex_);  // threads of gRPC, not this one, run what follows from TryCancel
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

void ActiveCall::EndIfRevoked(ClientCheck check) {
  absl::Status status;
  {
    MutexLock lock(context_mutex_);
    if (!context_gone_) status = check(context_);
  }
  if (!status.ok()) OnRevoked(status);
}

ActiveCalls::ActiveCalls(Duration longest_operation, ServerMetrics& metrics)
    : longest_operation_(longest_operation),
      metrics_(metrics),
      watch_("aft-calls", longest_operation / 4, [this] { CancelStuck(); }) {}

void ActiveCalls::Add(std::shared_ptr<ActiveCall> call) {
  const ActiveCall* const key = call.get();
  MutexLock lock(mutex_);
  calls_.emplace(key, std::move(call));
}

void ActiveCalls::Remove(const ActiveCall* call) {
  std::shared_ptr<ActiveCall> removed;  // goes without the lock
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

// To be looked at without the lock: gRPC may end a call that is cancelled within the cancelling.
std::vector<std::shared_ptr<ActiveCall>> ActiveCalls::calls() const {
  std::vector<std::shared_ptr<ActiveCall>> calls;
  MutexLock lock(mutex_);
  for (const auto& [key, call] : calls_) calls.push_back(call);
  return calls;
}

void ActiveCalls::EndRevoked(ClientCheck check) {
  for (const auto& call : calls()) call->EndIfRevoked(check);
}

void ActiveCalls::CancelStuck() {
  const TimePoint now = std::chrono::steady_clock::now();
  for (const auto& call : calls()) {
    if (call->CancelIfStuck(now, longest_operation_)) metrics_.stuck_calls.Increment();
  }
}

}  // namespace aft::server
