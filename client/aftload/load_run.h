#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "client/aftload/load_options.h"
#include "client/aftload/reference.h"
#include "client/aftload/schedule.h"
#include "client/aftload/transport.h"
#include "client/aftload/workload.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

// One phase of a load: the warm-up or the measurement. Run's thread keeps the time (arrivals,
// retries, the end). Streams run on the threads of their transports.
class LoadRun {
 public:
  // `first_index`: index in the workload of the first request. `references`: the expected answers,
  // to the requests in turn; empty: no comparison.
  LoadRun(const LoadOptions& options, const Workload& workload, uint64_t first_index,
          const std::vector<Reference>& references,
          const std::vector<std::unique_ptr<Transport>>& transports, CancelToken& cancel);
  ~LoadRun();

  LoadReport Run(const std::function<void(const Progress&)>& on_progress);

 private:
  class Stream;
  // The statistics of some of the streams, so that streams rarely wait for each other.
  struct Shard {
    explicit Shard(Clock::time_point start) : stats(start) {}
    Mutex mutex;
    LoadStats stats ABSL_GUARDED_BY(mutex);
  };

  bool open() const { return options_.arrivals.rate > 0; }
  // Calls `what` on Run's thread at `time`, or at once when the run is over.
  void At(Clock::time_point time, std::function<void()> what) ABSL_LOCKS_EXCLUDED(mutex_);
  void ScheduleArrival() ABSL_LOCKS_EXCLUDED(mutex_);
  void Launch(const Schedule::Slot& slot);
  // A stream has ended: starts the next one, in a closed loop after `pause`.
  void Next(std::chrono::milliseconds pause) ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts no more requests, and cancels those that run.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);
  Progress GetProgress() ABSL_LOCKS_EXCLUDED(mutex_);

  const LoadOptions& options_;
  const Workload& workload_;
  const uint64_t first_index_;
  const std::vector<Reference>& references_;
  const std::vector<std::unique_ptr<Transport>>& transports_;
  CancelToken& cancel_;
  const Clock::time_point start_;
  CancelToken cut_;
  std::atomic<bool> over_ = false;
  std::vector<std::unique_ptr<Shard>> shards_;

  Mutex mutex_;
  CondVar changed_;
  Schedule schedule_ ABSL_GUARDED_BY(mutex_);
  std::multimap<Clock::time_point, std::function<void()>> timers_ ABSL_GUARDED_BY(mutex_);
  std::deque<Schedule::Slot> waiting_ ABSL_GUARDED_BY(mutex_);
  uint32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t max_running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::client
