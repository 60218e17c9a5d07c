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

// A place of a request that is not there yet, so that it can be parsed in the knowledge that it
// will not be refused for want of one. Travels in RequestHeader::reservation; given back on
// destruction when no request took it. Must not outlive the engine. Thread-compatible.
class Reservation {
 public:
  Reservation(Inbox& inbox, const AdmissionBudget::Charge& charge)
      : inbox_(&inbox), charge_(charge) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

 private:
  friend class Inbox;

  Inbox* inbox_;  // null once a request has taken it
  AdmissionBudget::Charge charge_;
};

// Everything that crosses from other threads to the engine thread, and the admission budget, behind
// one mutex that is only ever held for a moment. Thread-safe.
class Inbox {
 public:
  // What has come in since the last Take.
  struct Batch {
    std::vector<std::unique_ptr<Job>> added;  // in arrival order
    std::vector<RequestHandle> cancelled;
    bool closed = false;               // Close was called; `added` stays empty from then on
    std::optional<TimePoint> stop_at;  // set once Stop was called
  };

  // `max_client_queued_requests`: of clients that have no quota of their own. `metrics`, whose
  // gauges of jobs that have not begun are the inbox's, must outlive it.
  Inbox(const AdmissionBudget::Limits& limits, int32_t max_client_queued_requests,
        ModelMetrics& metrics)
      : max_client_queued_requests_(max_client_queued_requests),
        budget_(limits),
        metrics_(metrics) {}

  // Why a request of that client would be refused now, whatever it is: kDraining, kQueuedRequests
  // or kClientQueue; nullopt: `reservation` is set.
  std::optional<Rejection> Reserve(const Client& client, std::shared_ptr<Reservation>& reservation);

  struct AddResult {
    RequestHandle handle = 0;          // of the first, unless refused; the others' follow it
    std::optional<Rejection> refused;  // as Reserve, or kQueuedTokens, or kDeadline
  };
  // All of these, which are one client's, or none. The first takes the place of its reservation, if
  // it has one of this inbox. `in_time`: whether that is soon enough, with so many of the client's
  // own requests before it; a short function without locks. An engine that has nothing else to do
  // takes them without asking: they are in nobody's way, and what was measured is measured again.
  AddResult Add(std::vector<std::unique_ptr<Job>> jobs,
                absl::FunctionRef<bool(int32_t ahead)> in_time);

  void Cancel(RequestHandle handle);

  // Add refuses from now on.
  void Close();

  // Close, and the engine thread is to end by `deadline`; of several calls the earliest counts.
  void Stop(TimePoint deadline);

  // For the engine thread: replaces `batch` by what has come in. Blocks until there is something
  // that `batch` does not say yet, at most for `wait`; Duration::max() is for ever.
  void Take(Duration wait, Batch& batch);

  // These jobs, which waited, run now.
  void LeaveQueue(const std::vector<Job*>& started);

  // These jobs have ended.
  void Leave(const std::vector<std::unique_ptr<Job>>& ended);

  EngineLoad load() const;

  // When the first of those arrived that the engine thread has not taken; max(): there is none.
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
