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

// A place in the queue for a request that is not parsed yet. So a request that is parsed is not
// refused because there is no place. RequestHeader::reservation passes it to the engine. If no
// request uses the place, the destructor gives it back. Must not outlive the engine.
// Thread-compatible.
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

// Passes everything from other threads to the engine thread, and holds the admission budget. One
// mutex protects both, and is only held for a moment. Thread-safe.
class Inbox {
 public:
  // Requests that are to end together, as in RequestLoop::Cancel.
  struct Cancelled {
    RequestHandle first;
    uint32_t count;
    Ending why;
  };
  // Everything that arrived since the last Take.
  struct Batch {
    std::vector<std::unique_ptr<Job>> added;  // in the order of Add
    std::vector<Cancelled> cancelled;
    bool closed = false;               // Close was called; `added` then stays empty
    bool streams_leave = false;        // as in Close
    std::optional<TimePoint> stop_at;  // set once Stop was called
  };

  // `max_client_queued_requests` and `strict_client_slots` apply to clients without quotas of their
  // own. `strict_client_slots`: the slots that a client may use; 0: each client may use all slots.
  // The inbox maintains the gauges of jobs that have not begun; `metrics` must outlive it.
  Inbox(const AdmissionBudget::Limits& limits, int32_t max_client_queued_requests,
        int32_t strict_client_slots, ModelMetrics& metrics)
      : limits_(limits),
        max_client_queued_requests_(max_client_queued_requests),
        strict_client_slots_(strict_client_slots),
        budget_(limits),
        metrics_(metrics) {}

  // Reserves a place for a request of that client and sets `reservation`. If any request of the
  // client would be refused now, returns the reason: kDraining, kQueuedRequests or kClientQueue.
  std::optional<Rejection> Reserve(const Client& client, std::shared_ptr<Reservation>& reservation);

  struct AddResult {
    // The handle of the first job; those of the others follow it. 0 if the jobs are refused.
    RequestHandle handle = 0;
    std::optional<Rejection> refused;  // as Reserve, or kQueuedTokens, or kDeadline
  };
  // Adds all of these jobs of one client, or leaves all in `jobs`. The first job uses its
  // reservation, if it has one of this inbox. `in_time` returns whether the jobs are read soon
  // enough if at most `ahead` requests of the same client go before them. It must be short and take
  // no locks. An idle engine accepts jobs without calling it, because they delay no others, and
  // running them corrects the estimate.
  AddResult Add(std::vector<std::unique_ptr<Job>>&& jobs,
                absl::FunctionRef<bool(int32_t ahead)> in_time);

  void Cancel(const Cancelled& requests);

  // From now on Add refuses all jobs. `streams_leave`: resumable streams are to end.
  void Close(bool streams_leave);

  // Calls Close(true), and tells the engine thread to end by `deadline`. The earliest deadline
  // counts.
  void Stop(TimePoint deadline);

  // Replaces `batch` with everything that has arrived. Only the engine thread calls it. Blocks
  // until there is something that `batch` does not hold yet, but at most for `wait`.
  // Duration::max() means without a limit.
  void Take(Duration wait, Batch& batch);

  // Records that these jobs, which were waiting, run now.
  void LeaveQueue(const std::vector<Job*>& started);

  // Records that these jobs have ended.
  void Leave(const std::vector<std::unique_ptr<Job>>& ended);

  EngineLoad load() const;

  // The number of requests of that client that may run or wait at the same time.
  int64_t MaxRequests(const Client& client) const;

  // The earliest arrival among the jobs that the engine thread has not taken; max() if there is
  // none.
  TimePoint oldest() const;

 private:
  friend class Reservation;

  int32_t ClientQueue(const Client& client) const;
  int32_t ClientSlots(const Client& client) const;
  void GiveBack(AdmissionBudget::Charge& charge);
  // `change`: 1 or -1.
  void CountWaiting(const Job& job, int change);
  std::optional<Rejection> Enter(const Client& client, AdmissionBudget::Charge& charge)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Rejection> Enter(Job& job, Reservation* reservation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AdmissionBudget::Limits limits_;
  const int32_t max_client_queued_requests_;
  const int32_t strict_client_slots_;
  mutable Mutex mutex_;
  CondVar arrived_;
  AdmissionBudget budget_ ABSL_GUARDED_BY(mutex_);
  ModelMetrics& metrics_;
  Batch pending_ ABSL_GUARDED_BY(mutex_);
  RequestHandle last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server
