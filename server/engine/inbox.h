#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "server/engine/job.h"
#include "server/observability/metrics.h"
#include "server/scheduling/admission_budget.h"
#include "server/scheduling/time.h"

namespace aft::server {

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

  // `waiting`: the gauge of jobs that have not begun; must outlive the inbox.
  Inbox(AdmissionBudget budget, prometheus::Gauge& waiting) : budget_(budget), waiting_(waiting) {}

  struct AddResult {
    RequestHandle handle = 0;          // unless refused
    std::optional<Rejection> refused;  // kDraining, kQueuedRequests or kQueuedTokens
  };
  AddResult Add(std::unique_ptr<Job> job);

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

 private:
  mutable Mutex mutex_;
  CondVar arrived_;
  AdmissionBudget budget_ ABSL_GUARDED_BY(mutex_);
  prometheus::Gauge& waiting_;
  Batch pending_ ABSL_GUARDED_BY(mutex_);
  RequestHandle last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server
