#include "server/engine/inbox.h"

#include <algorithm>
#include <utility>

namespace aft::server {

Inbox::AddResult Inbox::Add(std::unique_ptr<Stream> stream) {
  MutexLock lock(mutex_);
  if (closed_) return {.handle = 0, .refused = Rejection::kDraining};
  switch (budget_.Admit(stream->prompt_size(), stream->charge)) {
    case AdmissionBudget::Decision::kTooManyRequests:
      return {.handle = 0, .refused = Rejection::kQueuedRequests};
    case AdmissionBudget::Decision::kTooManyTokens:
      return {.handle = 0, .refused = Rejection::kQueuedTokens};
    case AdmissionBudget::Decision::kAdmitted:
      break;
  }
  stream->handle = ++last_handle_;
  pending_.added.push_back(std::move(stream));
  arrived_.NotifyOne();
  return {.handle = last_handle_, .refused = std::nullopt};
}

void Inbox::Cancel(Engine::Handle handle) {
  MutexLock lock(mutex_);
  pending_.cancelled.push_back(handle);
  arrived_.NotifyOne();
}

void Inbox::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

void Inbox::Stop(TimePoint deadline) {
  MutexLock lock(mutex_);
  closed_ = true;
  pending_.stop_at = std::min(pending_.stop_at.value_or(deadline), deadline);
  arrived_.NotifyOne();
}

void Inbox::Take(bool wait, Batch& batch) {
  batch.added.clear();
  batch.cancelled.clear();
  MutexLock lock(mutex_);
  while (wait && pending_.added.empty() && pending_.cancelled.empty() && !pending_.stop_at) {
    arrived_.Wait(mutex_);
  }
  // Swapped, not copied: the vectors keep their memory on both sides.
  batch.added.swap(pending_.added);
  batch.cancelled.swap(pending_.cancelled);
  batch.stop_at = pending_.stop_at;
}

void Inbox::LeaveQueue(const std::vector<Sequence*>& started) {
  if (started.empty()) return;
  MutexLock lock(mutex_);
  for (Sequence* sequence : started) budget_.LeaveQueue(static_cast<Stream*>(sequence)->charge);
}

void Inbox::Leave(const std::vector<std::unique_ptr<Stream>>& ended) {
  MutexLock lock(mutex_);
  for (const auto& stream : ended) budget_.Leave(stream->charge);
}

Engine::Load Inbox::load() const {
  MutexLock lock(mutex_);
  return {.running = budget_.running(), .waiting = budget_.waiting(), .slots = budget_.slots()};
}

}  // namespace aft::server
