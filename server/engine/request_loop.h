#ifndef AFT_SERVER_ENGINE_REQUEST_LOOP_H_
#define AFT_SERVER_ENGINE_REQUEST_LOOP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/engine/engine.h"
#include "server/engine/inbox.h"
#include "server/engine/job.h"
#include "server/observability/metrics.h"

namespace aft::server {

// The thread of an engine, and the way of every request through it:
//   inbox -> drop what is cancelled or expired -> a step of the model -> the one OnFinished
// until Shutdown. What a step is, is the business of Work. The thread sleeps when Work has nothing
// to do before a later time, and no longer than until the next deadline of a request.
//
// Thread-safety: as EngineControl, but for the methods of the engine thread.
class RequestLoop {
 public:
  // What the thread does. Every call comes from it; jobs are as Submit got them.
  class Work {
   public:
    virtual void PrepareThread() = 0;  // first of all
    // From here until Remove the job may be in steps.
    virtual void Add(Job& job) = 0;
    // The job has ended. Adds what it has got so far to `outcome`.
    virtual void Remove(Job& job, Outcome& outcome) = 0;
    // Runs a step if there is one to run. Returns when it wants to be called again although
    // nothing comes in: TimePoint::max() when there is nothing to do. `closed`: no job will be
    // added any more.
    virtual TimePoint Advance(bool closed) = 0;
    virtual void PublishGauges() = 0;

   protected:
    ~Work() = default;
  };

  struct Options {
    std::string thread_name;  // at most 15 characters
    int32_t slots = 1;        // requests that can run at once
    int32_t max_queued_requests = 0;
    int64_t max_queued_tokens = 0;
    std::function<TimePoint()> clock;
  };

  // Starts the thread. `metrics` and `work` must outlive the loop, and be ready for it.
  RequestLoop(Options options, ModelMetrics& metrics, Work& work);
  ~RequestLoop();  // shuts down with no grace

  // RESOURCE_EXHAUSTED or UNAVAILABLE; see EngineControl.
  absl::StatusOr<EngineControl::Handle> Submit(std::unique_ptr<Job> job);
  void Cancel(EngineControl::Handle handle) { inbox_.Cancel(handle); }
  void BeginDrain() { inbox_.Close(); }
  void Shutdown(TimePoint deadline);
  EngineControl::Load load() const { return inbox_.load(); }

  // For Work, on the engine thread.

  // These jobs, which waited, are in a step that begins.
  void Start(const std::vector<Job*>& jobs, TimePoint now);

  // Ends a job, which gets its OnFinished before the next step. It is not to be touched any more.
  void End(Job& job, Outcome outcome, TimePoint now);
  void Fail(Job& job, absl::Status status, TimePoint now);

 private:
  void Run();
  void DropCancelled(const std::vector<EngineControl::Handle>& handles);
  void DropExpired(TimePoint now);
  void DropAll(const absl::Status& status);
  void DeliverFinished();

  const Options options_;
  ModelMetrics& metrics_;
  Work& work_;
  Inbox inbox_;

  // Owned by the engine thread.
  std::unordered_map<EngineControl::Handle, std::unique_ptr<Job>> jobs_;
  TimePoint next_deadline_ = TimePoint::max();  // no job expires before
  std::vector<std::unique_ptr<Job>> finished_;
  std::vector<Outcome> outcomes_;  // of finished_

  Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

// For a prompt or text of `tokens`, so that it cannot harm its neighbours in the batch: a step that
// the runner refuses ends all of its requests. The edge checks too, with the field's name.
// `max_tokens`: 0 is unlimited.
absl::Status CheckTokens(const std::vector<TokenId>& tokens, int64_t vocab_size,
                         int64_t max_tokens);

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_REQUEST_LOOP_H_
