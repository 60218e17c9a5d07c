#include "server/engine/inbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace aft::server {
namespace {

std::optional<Rejection> Refusal(AdmissionBudget::Decision decision) {
  switch (decision) {
    case AdmissionBudget::Decision::kTooManyRequests:
      return Rejection::kQueuedRequests;
    case AdmissionBudget::Decision::kTooManyOfClient:
      return Rejection::kClientQueue;
    case AdmissionBudget::Decision::kTooManyTokens:
      return Rejection::kQueuedTokens;
    case AdmissionBudget::Decision::kAdmitted:
      break;
  }
  return std::nullopt;
}

}  // namespace

Reservation::~Reservation() {
  if (inbox_ != nullptr) inbox_->GiveBack(charge_);
}

std::optional<Rejection> Inbox::Reserve(const Client& client,
                                        std::shared_ptr<Reservation>& reservation) {
  AdmissionBudget::Charge charge;
  {
    MutexLock lock(mutex_);
    if (const auto refused = Enter(client, charge)) return refused;
  }
  reservation = std::make_shared<Reservation>(*this, charge);
  return std::nullopt;
}

Inbox::AddResult Inbox::Add(std::vector<std::unique_ptr<Job>>&& jobs,
                            absl::FunctionRef<bool(int32_t ahead)> in_time) {
  // Declared before the lock: a place in another inbox is given back after the unlock.
  const std::shared_ptr<Reservation> reservation = std::move(jobs.front()->reservation);
  MutexLock lock(mutex_);
  std::optional<Rejection> refused;
  size_t entered = 0;
  while (!refused && entered < jobs.size()) {
    refused = Enter(*jobs[entered], entered == 0 ? reservation.get() : nullptr);
    if (!refused) ++entered;
  }
  const bool idle = budget_.in_flight() == static_cast<int32_t>(entered);
  // Requests of other users of the client may come after this one, so they do not count: no request
  // may be refused that could have met its deadline.
  const Job& first_job = *jobs.front();
  const int32_t ahead = first_job.client->shares_by_user ? 0 : first_job.charge.ahead();
  if (!refused && !idle && !in_time(ahead)) refused = Rejection::kDeadline;
  if (pending_.closed) refused = Rejection::kDraining;  // it may have closed after Reserve
  if (refused) {
    for (size_t i = 0; i < entered; ++i) budget_.Leave(jobs[i]->charge);
    return {.handle = 0, .refused = refused};
  }
  const RequestHandle first = last_handle_ + 1;
  for (std::unique_ptr<Job>& job : jobs) {
    CountWaiting(*job, 1);
    job->handle = ++last_handle_;
    pending_.added.push_back(std::move(job));
  }
  arrived_.NotifyOne();
  return {.handle = first, .refused = std::nullopt};
}

void Inbox::Cancel(const Cancelled& requests) {
  MutexLock lock(mutex_);
  pending_.cancelled.push_back(requests);
  arrived_.NotifyOne();
}

void Inbox::Close(bool streams_leave) {
  MutexLock lock(mutex_);
  pending_.closed = true;
  pending_.streams_leave = pending_.streams_leave || streams_leave;
  arrived_.NotifyOne();
}

void Inbox::Stop(TimePoint deadline) {
  MutexLock lock(mutex_);
  pending_.closed = pending_.streams_leave = true;
  pending_.stop_at = std::min(pending_.stop_at.value_or(deadline), deadline);
  arrived_.NotifyOne();
}

void Inbox::Take(Duration wait, Batch& batch) {
  const bool for_ever = wait == Duration::max();
  const bool returns = wait <= Duration(0);  // a busy engine calls in every step, without the clock
  const TimePoint until =
      for_ever || returns ? TimePoint::max() : std::chrono::steady_clock::now() + wait;
  batch.added.clear();
  batch.cancelled.clear();
  MutexLock lock(mutex_);
  while (!returns && pending_.added.empty() && pending_.cancelled.empty() &&
         pending_.closed == batch.closed && pending_.streams_leave == batch.streams_leave &&
         pending_.stop_at == batch.stop_at) {
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
  batch.streams_leave = pending_.streams_leave;
  batch.stop_at = pending_.stop_at;
}

void Inbox::LeaveQueue(const std::vector<Job*>& started) {
  if (started.empty()) return;
  MutexLock lock(mutex_);
  for (Job* job : started) {
    CountWaiting(*job, -1);
    budget_.LeaveQueue(job->charge);
  }
}

void Inbox::Leave(const std::vector<std::unique_ptr<Job>>& ended) {
  MutexLock lock(mutex_);
  for (const auto& job : ended) {
    if (!job->started_at) CountWaiting(*job, -1);
    budget_.Leave(job->charge);
  }
}

void Inbox::CountWaiting(const Job& job, int change) {
  metrics_.requests_waiting.Add(job.service_class, change);
  metrics_.waiting_tokens.Add(change * static_cast<double>(job.tokens));
}

int32_t Inbox::ClientQueue(const Client& client) const {
  return client.max_queued_requests != 0 ? client.max_queued_requests : max_client_queued_requests_;
}

int32_t Inbox::ClientSlots(const Client& client) const {
  if (strict_client_slots_ == 0) return limits_.slots;
  return client.max_slots != 0 ? client.max_slots : strict_client_slots_;
}

int64_t Inbox::MaxRequests(const Client& client) const {
  return int64_t{std::min(ClientSlots(client), limits_.slots)} +
         std::min(ClientQueue(client), limits_.max_queued_requests);
}

std::optional<Rejection> Inbox::Enter(const Client& client, AdmissionBudget::Charge& charge) {
  if (pending_.closed) return Rejection::kDraining;
  return Refusal(budget_.Enter(client.name, ClientQueue(client), ClientSlots(client), charge));
}

// Admits a job and its text. The job takes the place of the reservation, if that is of this inbox.
std::optional<Rejection> Inbox::Enter(Job& job, Reservation* reservation) {
  if (reservation != nullptr && reservation->inbox_ == this) {
    job.charge = reservation->charge_;
    reservation->inbox_ = nullptr;
  } else if (const auto refused = Enter(*job.client, job.charge)) {
    return refused;
  }
  const auto refused = Refusal(budget_.AddText(job.tokens, job.service_class, job.charge));
  if (refused) budget_.Leave(job.charge);
  return refused;
}

void Inbox::GiveBack(AdmissionBudget::Charge& charge) {
  MutexLock lock(mutex_);
  budget_.Leave(charge);
}

EngineLoad Inbox::load() const {
  MutexLock lock(mutex_);
  return {.running = budget_.running(), .waiting = budget_.waiting(), .slots = budget_.slots()};
}

TimePoint Inbox::oldest() const {
  TimePoint oldest = TimePoint::max();
  MutexLock lock(mutex_);
  // A request that waited for Redis arrived earlier than others that were added before it.
  for (const auto& job : pending_.added) oldest = std::min(oldest, job->arrival);
  return oldest;
}

}  // namespace aft::server
