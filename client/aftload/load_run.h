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

// One phase of a load: warm-up or measurement. Run's thread keeps the time (arrivals, second
// attempts, the end); streams run on their transports'.
class LoadRun {
 public:
  // `first_index`: of the first request, in the workload. `references`: of the requests there are,
  // in turn; empty: any number.
  LoadRun(const LoadOptions& options, const Workload& workload, uint64_t first_index,
          const std::vector<Reference>& references,
          const std::vector<std::unique_ptr<Transport>>& transports, CancelToken& cancel);
  ~LoadRun();

  LoadReport Run(const std::function<void(const Progress&)>& on_progress);

 private:
  class Stream;
  // Streams record side by side.
  struct Shard {
    explicit Shard(Clock::time_point start) : stats(start) {}
    Mutex mutex;
    LoadStats stats ABSL_GUARDED_BY(mutex);
  };

  bool open() const { return options_.arrivals.rate > 0; }
  // At `time`, or at once when the run is over, on Run's thread.
  void At(Clock::time_point time, std::function<void()> what) ABSL_LOCKS_EXCLUDED(mutex_);
  void ScheduleArrival() ABSL_LOCKS_EXCLUDED(mutex_);
  void Launch(const Schedule::Slot& slot);
  // A stream has ended: its place is for the next one, `pause` later in a closed loop.
  void Next(std::chrono::milliseconds pause) ABSL_LOCKS_EXCLUDED(mutex_);
  // No request begins after this; those that run are cancelled.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);
  Progress GetProgress() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for connections, which calls that fail at once do not.
  void KeepConnected();

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
