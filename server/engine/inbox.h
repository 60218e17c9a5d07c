#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "base/mutex.h"
#include "server/engine/job.h"
#include "server/observability/metrics.h"
#include "server/scheduling/admission_budget.h"
#include "server/scheduling/time.h"

namespace aft::server {

class Inbox;

// A place for a request that is not there yet. Its owner can parse the request, knowing that it
// will not be refused for want of a place. It travels in RequestHeader::reservation. If no request
// uses it, its destructor gives it back. Must not outlive the engine. Thread-compatible.
class Reservation {
 public:
  Reservation(Inbox& inbox, const AdmissionBudget::Charge& charge)
      : inbox_(&inbox), charge_(charge) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

 private:
  friend class Inbox;

  Inbox* inbox_;  // null once a request has used it
  AdmissionBudget::Charge charge_;
};

// Carries everything from other threads to the engine thread, and holds the admission budget. One
// mutex protects both, and is only ever held for a moment. Thread-safe.
class Inbox {
 public:
  // What has come in since the last Take.
  struct Batch {
    std::vector<std::unique_ptr<Job>> added;  // in arrival order
    std::vector<RequestHandle> cancelled;
    bool closed = false;               // Close was called; then `added` stays empty
    std::optional<TimePoint> stop_at;  // set once Stop was called
  };

  // `max_client_queued_requests` applies to clients without a quota of their own. `metrics` must
  // outlive the inbox, which maintains the gauges of jobs that have not begun.
  Inbox(const AdmissionBudget::Limits& limits, int32_t max_client_queued_requests,
        ModelMetrics& metrics)
      : max_client_queued_requests_(max_client_queued_requests),
        budget_(limits),
        metrics_(metrics) {}

  // Returns why any request of that client would be refused now: kDraining, kQueuedRequests or
  // kClientQueue. nullopt: `reservation` is set.
  std::optional<Rejection> Reserve(const Client& client, std::shared_ptr<Reservation>& reservation);

  struct AddResult {
    RequestHandle handle = 0;          // of the first; the others' follow it; 0 if refused
    std::optional<Rejection> refused;  // as Reserve, or kQueuedTokens, or kDeadline
  };
  // Adds all of these jobs, which are one client's, or none. The first job uses its reservation, if
  // it has one of this inbox. `in_time` returns whether the jobs are read soon enough when `ahead`
  // of the client's own requests go before them; it must be short and take no locks. An idle engine
  // accepts jobs without calling it: they delay no others, and running them corrects the estimate.
  AddResult Add(std::vector<std::unique_ptr<Job>> jobs,
                absl::FunctionRef<bool(int32_t ahead)> in_time);

  void Cancel(RequestHandle handle);

  // Add refuses from now on.
  void Close();

  // Closes, and tells the engine thread to end by `deadline`. The earliest deadline counts.
  void Stop(TimePoint deadline);

  // Replaces `batch` with what has come in. Only the engine thread calls it. Blocks until there is
  // something that `batch` does not hold yet, at most for `wait`; Duration::max() is for ever.
  void Take(Duration wait, Batch& batch);

  // These jobs, which were waiting, run now.
  void LeaveQueue(const std::vector<Job*>& started);

  // These jobs have ended.
  void Leave(const std::vector<std::unique_ptr<Job>>& ended);

  EngineLoad load() const;

  // The earliest arrival of a job that the engine thread has not taken; max(): there is none.
  TimePoint oldest() const;

 private:
  friend class Reservation;

  void GiveBack(AdmissionBudget::Charge& charge);
  // `change`: 1 or -1.
  void CountWaiting(const Job& job, int change);
  std::optional<Rejection> Enter(const Client& client, AdmissionBudget::Charge& charge)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Rejection> Enter(Job& job, Reservation* reservation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int32_t max_client_queued_requests_;
  mutable Mutex mutex_;
  CondVar arrived_;
  AdmissionBudget budget_ ABSL_GUARDED_BY(mutex_);
  ModelMetrics& metrics_;
  Batch pending_ ABSL_GUARDED_BY(mutex_);
  RequestHandle last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server
