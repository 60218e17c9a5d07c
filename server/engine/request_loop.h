#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/cpus.h"
#include "base/mutex.h"
#include "model/api/model_runner.h"
#include "server/config/config.h"
#include "server/engine/inbox.h"
#include "server/engine/job.h"
#include "server/engine/load_estimate.h"
#include "server/observability/metrics.h"

namespace aft::server {

// UNAVAILABLE: the server is draining and accepts nothing new.
absl::Status Draining();
// ABORTED: the request ends because its call has failed, or another request of its call.
absl::Status CallHasFailed();

struct EngineOptions {
  ModelConfig model;
  LimitsConfig limits;
  SchedulingConfig scheduling;
  HealthConfig health;
  // Called once if the model fails, with the reason, before its requests end, on the thread that
  // noticed the failure.
  std::function<void(const std::string&)> on_failed = [](const std::string&) {};
  // Any thread may read the clock; tests inject their own.
  std::function<TimePoint()> clock = std::chrono::steady_clock::now;
  // The time that the calling thread has had a core. The engine's thread reads it.
  std::function<Duration()> cpu_clock = ThreadCpuTime;
};

// The base of all engines. It has one thread, which runs until Shutdown and leads each request
// through these stages:
//   inbox -> drop what is cancelled or expired -> a step of the model -> the one OnFinished
// The derived engine defines what a step is, and the methods that accept requests. Each of these
// methods accepts a request, which then gets exactly one OnFinished, or refuses it without side
// effects:
//   RESOURCE_EXHAUSTED  the queue is full, or the client's part of it (says which limit); or the
//                       text would not be read before the deadline, according to measurements
//   UNAVAILABLE         draining, or the model has failed
//   INVALID_ARGUMENT    the text is empty, longer than the model allows or holds a token outside
//                       the vocabulary
// The thread sleeps when there is nothing to do before a later time, and no longer than until the
// next deadline of a request.
//
// The model fails for good when health.max_failed_steps in a row fail, when its device is lost,
// when engine or runner throw, or when a step does not end (CheckProgress). Its requests then end
// with UNAVAILABLE, even while the engine thread is stuck in the runner. The thread that noticed
// the failure takes their sinks, so what the engine thread still produces is discarded.
//
// Thread-safety: any thread may call any public method. Except for Shutdown and TryShutdown, they
// wait for the engine thread no longer than one short critical section.
class RequestLoop {
 public:
  virtual ~RequestLoop() = default;

  // Ends `count` requests, of which `first` is the first one, all before the same step, and frees
  // their slots. `why` is the reason that the metrics give. With kError the requests end with
  // ABORTED (CallHasFailed), otherwise with CANCELLED. Unknown and finished handles are ignored.
  void Cancel(RequestHandle first, uint32_t count = 1, Ending why = Ending::kCancelled) {
    inbox_.Cancel({first, count, why});
  }

  // Refuses new requests with UNAVAILABLE. Requests that no step has held yet end with UNAVAILABLE,
  // and so do resumable streams, which leave their resume points. All others continue. Without
  // `streams_leave` resumable streams continue too, until a drain with it or the shutdown. Such a
  // drain is that of a version which was replaced or unloaded, and the errors say so from then on.
  void BeginDrain(bool streams_leave = true) {
    if (!streams_leave) retired_ = true;
    inbox_.Close(streams_leave);
  }

  // Like Shutdown, but returns at once.
  void EndBy(TimePoint deadline) { inbox_.Stop(deadline); }

  // Calls BeginDrain, then waits until all requests have ended or `deadline` has passed; the rest
  // ends with UNAVAILABLE. The thread is joined on return. Idempotent.
  void Shutdown(TimePoint deadline);

  // Like Shutdown, but returns false when the thread is still in a step `margin` after `deadline`,
  // or after the model has failed. The model counts as failed then, and the thread keeps running.
  // Only _exit ends a thread that is stuck for ever; the destructor waits for it.
  bool TryShutdown(TimePoint deadline, Duration margin = std::chrono::seconds(2));

  // Fails the model when its step has taken longer than health.step_timeout. Must be called several
  // times a second, by one thread at a time. A longer time between two calls counts as one second,
  // because the process was stopped meanwhile, and the step with it.
  void CheckProgress();

  // When the engine thread began its current step; TimePoint::max() while it has nothing to do.
  TimePoint busy_since() const { return busy_since_; }

  EngineLoad load() const;

  // Returns the vectors of each text to a sink of its own. Accepts all texts or none. The handle is
  // that of the first text; those of the others follow it. INVALID_ARGUMENT also: a text is longer
  // than a batch may be, or the model does not accept this form of input.
  virtual absl::StatusOr<RequestHandle> EncodeTexts(
      std::vector<EncodingRequest> requests,
      const std::vector<std::shared_ptr<VectorSink>>& sinks) = 0;

  // INVALID_ARGUMENT if a call of that client with this number of texts can never be accepted, even
  // if the client has no other requests. `field` is the request's field with the texts. REQUIRES:
  // texts > 1.
  absl::Status CheckTexts(const Client& client, int64_t texts, absl::string_view field) const;

  // Returns a place for a request of that client, for RequestHeader::reservation.
  // RESOURCE_EXHAUSTED or UNAVAILABLE, as above, if any request of the client would be refused now.
  // Costs a lookup under a lock.
  absl::StatusOr<std::shared_ptr<Reservation>> Reserve(const Client& client);

 protected:
  // `slots` is the number of requests that can run at once. `strict_client_slots` is the number of
  // them that one client can have, if it has no quota of its own; 0: the quotas of clients do not
  // keep their requests waiting. `metrics` must outlive the loop.
  RequestLoop(const EngineOptions& options, int32_t slots, int32_t strict_client_slots,
              ModelMetrics& metrics);

  // Must be called at the end of the engine's construction, because the thread uses the whole
  // engine. For the same reason the engine's destructor must begin with Shutdown. `name`: at most
  // 15 characters.
  void StartThread(const char* name);

  // The methods that accept requests end with one of these.
  absl::StatusOr<RequestHandle> Accept(std::unique_ptr<Job> job);
  // Accepts all of these jobs, which arrive as one request, or none. The handle is that of the
  // first job; those of the others follow it. Add is called in this order.
  absl::StatusOr<RequestHandle> Accept(std::vector<std::unique_ptr<Job>> jobs);
  // Accepts the texts of one call. The call has begun when its first text begins. From then on the
  // others wait as long as they have to, also during a drain.
  absl::StatusOr<RequestHandle> AcceptTexts(std::vector<std::unique_ptr<Job>> jobs);
  absl::Status RefuseInvalid(absl::Status status) {
    metrics_.rejected(Rejection::kInvalid).Increment();
    return status;
  }
  // The error of requests that the drain refuses or ends.
  absl::Status DrainStatus() const {
    if (!retired_) return Draining();
    return absl::UnavailableError(
        "this version of the model is draining: it was replaced or unloaded");
  }

  // All that follows is for the engine thread alone.

  virtual void PrepareThread() = 0;  // called first
  // From this call until Remove the job may be in steps.
  virtual void Add(Job& job, TimePoint now) = 0;
  // Streams leave (BeginDrain), and the job has begun: the engine may end it. Called repeatedly.
  virtual void Leave(Job& /*job*/, TimePoint /*now*/) {}
  // Is called when the job has ended. Adds its results so far to `outcome`.
  virtual void Remove(Job& job, Outcome& outcome) = 0;
  // Runs a step if there is one to run. Returns the time at which it must be called again even if
  // no request arrives; TimePoint::max() when there is nothing to do.
  virtual TimePoint Advance() = 0;
  virtual void PublishGauges() = 0;
  // The number of jobs of that class that have not begun and wait for more than their turn. Any
  // thread may call it, also under a lock.
  virtual int32_t HeldBack(ServiceClass /*service_class*/) const { return 0; }

  TimePoint Now() const { return options_.clock(); }

  // A step begins with these jobs, which were waiting until now.
  void BeginStep(const std::vector<Job*>& jobs, TimePoint now);
  // The time for one token of a text, measured by a step that ended at `now`; see LoadEstimate.
  void SetTokenSeconds(double seconds, TimePoint now) { estimate_.SetTokenSeconds(seconds, now); }
  // Records that a step was done at `now`, and its metrics. `device`: null on the CPU; read only
  // when the step has not failed.
  void ObserveStep(size_t rows, int64_t tokens, Duration time, TimePoint now,
                   const absl::Status& status, const DeviceStats* device);

  // Gives a part of its answer to the request's sink. Returns the result of OnPart.
  template <typename Part>
  absl::Status Give(Sink<Part>& sink, Part part) {
    MutexLock lock(delivery_mutex_);
    return failed_ ? absl::OkStatus() : sink.OnPart(std::move(part));
  }

  // Ends a job, which gets its OnFinished before the next step. The caller must not use the job
  // afterwards.
  void End(Job& job, Outcome outcome, TimePoint now);
  void Fail(Job& job, absl::Status status, TimePoint now);
  // Fails all of these jobs, or the whole model, because their step has failed. `rows` is the
  // number of rows of the step.
  void FailStep(const std::vector<Job*>& jobs, size_t rows, const absl::Status& status,
                TimePoint now);
  void FailNotFinite(Job& job, TimePoint now);
  // Gives a text its vectors, and ends it. `rows` is the number of rows of the step that made the
  // last vectors.
  void EndEncoded(Job& job, VectorSink& sink, std::vector<float> vectors, size_t rows,
                  TimePoint now) {
    job.first_output_at = now;
    absl::Status status = Give(sink, std::move(vectors));
    if (!status.ok()) return Fail(job, std::move(status), now);
    Outcome outcome;
    outcome.reason = FinishReason::kDone;
    outcome.batch_rows = static_cast<uint32_t>(rows);
    End(job, std::move(outcome), now);
  }

  const EngineOptions options_;
  ModelMetrics& metrics_;

 private:
  absl::Status Refuse(Rejection reason);
  int32_t max_client_queued_requests() const;  // for clients without a quota of their own
  TimePoint Expiry(const Job& job) const;
  // Is called when the job begins, or when it ends without having begun.
  void LeaveQueue(const Job& job) { --waiting_[static_cast<size_t>(job.service_class)]; }
  void FindOldest();
  void Run(const char* name);
  void DropCancelled(const std::vector<Inbox::Cancelled>& cancelled);
  void DropExpired(TimePoint now);
  void DropQueued();
  void LeaveRunning();
  void DropAll(const absl::Status& status);
  void DeliverFinished();
  void Serve();
  void ForgetJobs();
  void FailModel(const std::string& reason);
  void ClearGauges();
  bool failed() const {
    MutexLock lock(delivery_mutex_);
    return failed_;
  }
  absl::Status HasFailed() const;
  // Calls the one OnFinished after the metrics are updated, so that they show what the client
  // knows.
  void Finish(FinishSink& sink, Ending ending, const Outcome& outcome);

  // The data with which any thread can end a request; the job belongs to the engine thread.
  struct Accepted {
    std::shared_ptr<FinishSink> sink;
    TimePoint arrival;
    Usage usage;
  };

  Inbox inbox_;
  LoadEstimate estimate_;

  // Every accepted request whose OnFinished has not been called. The thread that removes an entry
  // calls it.
  Mutex accepted_mutex_;
  bool refuse_ ABSL_GUARDED_BY(accepted_mutex_) = false;  // the model has failed
  std::unordered_map<RequestHandle, Accepted> accepted_ ABSL_GUARDED_BY(accepted_mutex_);

  // Held during each call of a sink except OnFinished. There is no such call once the model has
  // failed.
  mutable Mutex delivery_mutex_;
  CondVar state_changed_;
  bool failed_ ABSL_GUARDED_BY(delivery_mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(delivery_mutex_) = false;  // the thread is about to end

  // Only CheckProgress uses these.
  TimePoint checked_at_;                       // when it was called last
  TimePoint checked_step_ = TimePoint::max();  // busy_since_ at that time
  Duration step_time_{};                       // of that step, as CheckProgress counts it

  std::atomic<bool> retired_{false};  // BeginDrain(false) was called
  std::atomic<TimePoint> busy_since_{TimePoint::max()};
  std::atomic<TimePoint> last_step_;                         // when the last step was done
  std::atomic<TimePoint> oldest_waiting_{TimePoint::max()};  // first arrival of a waiting job

  // The engine thread owns these.
  std::unordered_map<RequestHandle, std::unique_ptr<Job>> jobs_;
  TimePoint next_deadline_ = TimePoint::max();     // no job expires before it
  std::array<size_t, kServiceClasses> waiting_{};  // jobs that have not begun, by class
  TimePoint next_look_;       // when to update oldest_waiting_, while a job waits
  int32_t failed_steps_ = 0;  // in a row
  std::vector<std::unique_ptr<Job>> finished_;
  std::vector<Outcome> outcomes_;  // of finished_

  Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace aft::server
