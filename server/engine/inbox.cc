#include "server/engine/inbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace aft::server {

Inbox::AddResult Inbox::Add(std::unique_ptr<Job> job) {
  MutexLock lock(mutex_);
  if (pending_.closed) return {.handle = 0, .refused = Rejection::kDraining};
  switch (budget_.Admit(job->tokens, job->charge)) {
    case AdmissionBudget::Decision::kTooManyRequests:
      return {.handle = 0, .refused = Rejection::kQueuedRequests};
    case AdmissionBudget::Decision::kTooManyTokens:
      return {.handle = 0, .refused = Rejection::kQueuedTokens};
    case AdmissionBudget::Decision::kAdmitted:
      break;
  }
  waiting_.Increment();
  job->handle = ++last_handle_;
  pending_.added.push_back(std::move(job));
  arrived_.NotifyOne();
  return {.handle = last_handle_, .refused = std::nullopt};
}

void Inbox::Cancel(RequestHandle handle) {
  MutexLock lock(mutex_);
  pending_.cancelled.push_back(handle);
  arrived_.NotifyOne();
}

void Inbox::Close() {
  MutexLock lock(mutex_);
  pending_.closed = true;
  arrived_.NotifyOne();
}

void Inbox::Stop(TimePoint deadline) {
  MutexLock lock(mutex_);
  pending_.closed = true;
  pending_.stop_at = std::min(pending_.stop_at.value_or(deadline), deadline);
  arrived_.NotifyOne();
}

void Inbox::Take(Duration wait, Batch& batch) {
  const bool for_ever = wait == Duration::max();
  const TimePoint until = for_ever ? TimePoint::max() : std::chrono::steady_clock::now() + wait;
  batch.added.clear();
  batch.cancelled.clear();
  MutexLock lock(mutex_);
  while (wait > Duration(0) && pending_.added.empty() && pending_.cancelled.empty() &&
         pending_.closed == batch.closed && pending_.stop_at == batch.stop_at) {
    if (for_ever) {
      arrived_.Wait(mutex_);
    } else if (!arrived_.WaitUntil(mutex_, until)) {
      break;
    }
  }
  // Swapped, not copied: the vectors keep their memory on both sides.
  batch.added.swap(pending_.added);
  batch.cancelled.swap(pending_.cancelled);
  batch.closed = pending_.closed;
  batch.stop_at = pending_.stop_at;
}

void Inbox::LeaveQueue(const std::vector<Job*>& started) {
  if (started.empty()) return;
  MutexLock lock(mutex_);
  waiting_.Decrement(static_cast<double>(started.size()));
  for (Job* job : started) budget_.LeaveQueue(job->charge);
}

void Inbox::Leave(const std::vector<std::unique_ptr<Job>>& ended) {
  MutexLock lock(mutex_);
  for (const auto& job : ended) {
    if (!job->started_at) waiting_.Decrement();
    budget_.Leave(job->charge);
  }
}

EngineLoad Inbox::load() const {
  MutexLock lock(mutex_);
  return {.running = budget_.running(), .waiting = budget_.waiting(), .slots = budget_.slots()};
}

}  // namespace aft::server
