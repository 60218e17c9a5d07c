#include "server/engine/request_loop.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/catching.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

// How often all requests are searched for the one that has waited longest.
constexpr std::chrono::milliseconds kLookInterval{100};
// The most time that one call of CheckProgress adds to the time of a step.
constexpr std::chrono::seconds kLongestPause{1};

static_assert(static_cast<int>(Ending::kDone) == static_cast<int>(FinishReason::kDone));

Ending EndingOf(const Job& job, const Outcome& outcome) {
  if (job.cancelled) return *job.cancelled;
  switch (outcome.status.code()) {
    case absl::StatusCode::kOk:
      return static_cast<Ending>(outcome.reason);
    case absl::StatusCode::kDeadlineExceeded:
      return Ending::kDeadline;
    case absl::StatusCode::kUnavailable:
      return Ending::kShutdown;
    case absl::StatusCode::kResourceExhausted:
      if (IsNoMemory(outcome.status)) return Ending::kError;
      return job.started_at ? Ending::kSlowClient : Ending::kQueueTimeout;
    default:
      return Ending::kError;
  }
}

}  // namespace

absl::Status Draining() { return absl::UnavailableError("the server is draining"); }
absl::Status CallHasFailed() { return absl::AbortedError("the call of this request has failed"); }

RequestLoop::RequestLoop(const EngineOptions& options, int32_t slots, int32_t strict_client_slots,
                         ModelMetrics& metrics)
    : options_(options),
      metrics_(metrics),
      inbox_({.slots = slots,
              .max_queued_requests = options_.limits.max_queued_requests,
              .max_queued_tokens = options_.limits.max_queued_tokens},
             max_client_queued_requests(), strict_client_slots, metrics),
      checked_at_(options_.clock()),
      last_step_(options_.clock()) {
  metrics_.slots_total.Set(slots);
}

void RequestLoop::StartThread(const char* name) {
  MutexLock lock(join_mutex_);
  thread_ = std::thread([this, name] { Run(name); });
}

int32_t RequestLoop::max_client_queued_requests() const {
  const int32_t own = options_.scheduling.max_client_queued_requests;
  return own != 0 ? own : std::max(options_.limits.max_queued_requests / 2, 1);
}

absl::StatusOr<std::shared_ptr<Reservation>> RequestLoop::Reserve(const Client& client) {
  {
    MutexLock lock(accepted_mutex_);
    if (refuse_) return Refuse(Rejection::kFailed);
  }
  std::shared_ptr<Reservation> reservation;
  const std::optional<Rejection> refused = inbox_.Reserve(client, reservation);
  if (refused) return Refuse(*refused);
  return reservation;
}

absl::StatusOr<RequestHandle> RequestLoop::Accept(std::unique_ptr<Job> job) {
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(std::move(job));
  return Accept(std::move(jobs));
}

absl::StatusOr<RequestHandle> RequestLoop::Accept(std::vector<std::unique_ptr<Job>> jobs) {
  const TimePoint deadline = jobs.front()->deadline;
  const ServiceClass service_class = jobs.front()->service_class;
  int64_t least_unread = 0;
  for (const auto& job : jobs) least_unread += job->least_unread;
  const TimePoint now = Now();
  Duration estimate{};
  const auto in_time = [&](int32_t ahead) {
    // A job that is held back may begin after this one. Jobs of other clients are subtracted too,
    // so the estimate may be too low, but not too high.
    for (int i = 0; i <= static_cast<int>(service_class); ++i) {
      ahead -= HeldBack(static_cast<ServiceClass>(i));
    }
    estimate = estimate_.UntilRead(service_class, std::max(ahead, 0), least_unread, now);
    return deadline <= now || estimate <= deadline - now;  // it may have expired already
  };
  std::vector<Accepted> accepted;
  accepted.reserve(jobs.size());
  for (const auto& job : jobs) accepted.push_back({job->finish_sink, job->arrival, job->usage});
  Inbox::AddResult result;
  {
    // Refused jobs stay in `jobs`, because freeing them must not delay the engine's thread.
    MutexLock lock(accepted_mutex_);
    result = refuse_ ? Inbox::AddResult{.refused = Rejection::kFailed}
                     : inbox_.Add(std::move(jobs), in_time);
    for (size_t i = 0; !result.refused && i < accepted.size(); ++i) {
      accepted_.emplace(result.handle + i, std::move(accepted[i]));
    }
  }
  if (!result.refused) return result.handle;
  if (*result.refused != Rejection::kDeadline) return Refuse(*result.refused);
  metrics_.rejected(Rejection::kDeadline).Increment();
  return absl::ResourceExhaustedError(
      absl::StrFormat("the deadline cannot be met: it is in %.3f s, and to wait and read the text "
                      "would take at least %.3f s, as measured",
                      Seconds(deadline - now), Seconds(estimate)));
}

absl::StatusOr<RequestHandle> RequestLoop::AcceptTexts(std::vector<std::unique_ptr<Job>> jobs) {
  if (jobs.size() > 1) {
    const auto began = std::make_shared<bool>(false);
    for (const auto& job : jobs) job->call_began = began;
  }
  return Accept(std::move(jobs));
}

absl::Status RequestLoop::CheckTexts(const Client& client, int64_t texts,
                                     absl::string_view field) const {
  const int64_t most = inbox_.MaxRequests(client);
  if (texts <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": needs ", texts, " places, one for each answer to each text; the client",
      " may have ", most, " in the model's slots and queue"));
}

absl::Status RequestLoop::Refuse(Rejection reason) {
  metrics_.rejected(reason).Increment();
  switch (reason) {
    case Rejection::kQueuedRequests:
      return absl::ResourceExhaustedError(
          absl::StrCat("queue full: max_queued_requests=", options_.limits.max_queued_requests));
    case Rejection::kClientQueue:
      return absl::ResourceExhaustedError(
          "the client's part of the queue is full: max_client_queued_requests, or half of "
          "max_queued_tokens");
    case Rejection::kQueuedTokens:
      return absl::ResourceExhaustedError(
          absl::StrCat("queue full: max_queued_tokens=", options_.limits.max_queued_tokens));
    case Rejection::kFailed:
      return HasFailed();
    default:
      return DrainStatus();
  }
}

void RequestLoop::Shutdown(TimePoint deadline) {
  inbox_.Stop(deadline);
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool RequestLoop::TryShutdown(TimePoint deadline, Duration margin) {
  inbox_.Stop(deadline);
  bool ended = false;
  {
    MutexLock lock(delivery_mutex_);
    while (!ended_ && !failed_ && state_changed_.WaitUntil(delivery_mutex_, deadline)) continue;
    const TimePoint until = std::chrono::steady_clock::now() + margin;
    while (!ended_ && state_changed_.WaitUntil(delivery_mutex_, until)) continue;
    ended = ended_;
  }
  if (!ended) {
    FailModel("its thread did not end with the server");
    return false;
  }
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
  return true;
}

void RequestLoop::CheckProgress() {
  const TimePoint since = busy_since_;
  const TimePoint now = Now();
  const Duration passed = std::min<Duration>(now - std::exchange(checked_at_, now), kLongestPause);
  if (since != std::exchange(checked_step_, since)) step_time_ = Duration(0);
  if (since == TimePoint::max()) return;
  step_time_ += std::min(passed, now - since);
  if (step_time_ <= options_.health.step_timeout) return;
  FailModel(absl::StrCat("a step did not end within health.step_timeout_ms=",
                         options_.health.step_timeout.count()));
}

void RequestLoop::Run(const char* name) {
  pthread_setname_np(pthread_self(), name);
  try {
    Serve();
  } catch (const std::exception& error) {
    FailModel(absl::StrCat("exception: ", error.what()));
  } catch (...) {
    FailModel("exception of an unknown type");
  }
  busy_since_ = TimePoint::max();
  if (failed()) {
    ForgetJobs();
    ClearGauges();  // in case the thread has set them since then
  }
  MutexLock lock(delivery_mutex_);
  ended_ = true;
  state_changed_.NotifyAll();
}

// Frees the jobs of a failed model, whose clients have been told. Otherwise the engine would keep
// the calls, and the calls would keep their model.
void RequestLoop::ForgetJobs() {
  Inbox::Batch rest;
  inbox_.Take(Duration(0), rest);
  jobs_.clear();
  finished_.clear();
  outcomes_.clear();
}

void RequestLoop::Serve() {
  busy_since_ = Now();
  PrepareThread();
  TimePoint wake = TimePoint::max();
  for (Inbox::Batch batch; !failed();) {
    wake = std::min(wake, next_deadline_);
    busy_since_ = TimePoint::max();
    inbox_.Take(wake == TimePoint::max()   ? Duration::max()
                : wake == TimePoint::min() ? Duration(0)
                                           : wake - Now(),
                batch);
    const TimePoint now = Now();
    busy_since_ = now;
    for (std::unique_ptr<Job>& job : batch.added) {
      next_deadline_ = std::min(next_deadline_, Expiry(*job));
      ++waiting_[static_cast<size_t>(job->service_class)];
      Add(*job, now);
      const RequestHandle handle = job->handle;
      jobs_.emplace(handle, std::move(job));
    }
    DropCancelled(batch.cancelled);
    if (batch.closed) DropQueued();
    if (batch.streams_leave) LeaveRunning();
    DropExpired(now);
    const bool stop = batch.stop_at && (jobs_.empty() || now >= *batch.stop_at);
    if (stop) {
      DropAll(retired_ ? DrainStatus() : absl::UnavailableError("the server is shutting down"));
      while (Advance() != TimePoint::max()) continue;  // until no step is in flight
    }
    DeliverFinished();
    if (stop) return;
    wake = Advance();
    DeliverFinished();
    // If the last job ended while the thread stops, nothing else would wake it.
    if (batch.stop_at && jobs_.empty()) wake = TimePoint::min();
  }
}

void RequestLoop::DropCancelled(const std::vector<Inbox::Cancelled>& cancelled) {
  for (const auto& [first, count, why] : cancelled) {
    for (RequestHandle handle = first; handle < first + count; ++handle) {
      const auto it = jobs_.find(handle);
      if (it == jobs_.end()) continue;  // it has finished meanwhile
      it->second->cancelled = why;
      Fail(*it->second,
           why == Ending::kError ? CallHasFailed() : absl::CancelledError("the call was cancelled"),
           Now());
    }
  }
}

void RequestLoop::DropExpired(TimePoint now) {
  if (now < next_deadline_) return;
  next_deadline_ = TimePoint::max();
  std::vector<Job*> expired;
  for (const auto& [handle, job] : jobs_) {
    if (now >= Expiry(*job)) {
      expired.push_back(job.get());
    } else {
      next_deadline_ = std::min(next_deadline_, Expiry(*job));
    }
  }
  for (Job* job : expired) {
    Fail(*job, WhyExpired(*job, now, options_.scheduling.max_queue, options_.limits.max_request),
         now);
  }
}

// Ends jobs that have not begun, because another server can begin them sooner.
void RequestLoop::DropQueued() {
  std::vector<Job*> queued;
  for (const auto& [handle, job] : jobs_) {
    if (!job->began()) queued.push_back(job.get());
  }
  const TimePoint now = Now();
  for (Job* job : queued) Fail(*job, DrainStatus(), now);
}

void RequestLoop::LeaveRunning() {
  std::vector<Job*> running;
  for (const auto& [handle, job] : jobs_) running.push_back(job.get());
  const TimePoint now = Now();
  for (Job* job : running) Leave(*job, now);
}

TimePoint RequestLoop::Expiry(const Job& job) const {
  const Duration max_queue = options_.scheduling.max_queue;
  if (job.began() || max_queue == Duration(0)) return job.deadline;
  return std::min(job.deadline, job.arrival + max_queue);
}

// This looks at all jobs, so it is done only every kLookInterval.
void RequestLoop::FindOldest() {
  if (std::all_of(waiting_.begin(), waiting_.end(), [](size_t count) { return count == 0; })) {
    oldest_waiting_ = TimePoint::max();
    return;
  }
  const TimePoint now = Now();
  if (oldest_waiting_.load() != TimePoint::max() && now < next_look_) return;
  next_look_ = now + kLookInterval;
  TimePoint oldest = TimePoint::max();
  for (const auto& [handle, job] : jobs_) {
    if (!job->started_at) oldest = std::min(oldest, job->arrival);
  }
  oldest_waiting_ = oldest;
}

EngineLoad RequestLoop::load() const {
  EngineLoad load = inbox_.load();
  const TimePoint last_step = last_step_;  // before `now`, so that it cannot be later
  const TimePoint now = Now();
  const TimePoint oldest = std::min(oldest_waiting_.load(), inbox_.oldest());
  if (oldest < now) load.oldest_waiting = now - oldest;
  load.since_step = now - last_step;
  return load;
}

void RequestLoop::DropAll(const absl::Status& status) {
  const TimePoint now = Now();
  while (!jobs_.empty()) Fail(*jobs_.begin()->second, status, now);
}

void RequestLoop::BeginStep(const std::vector<Job*>& jobs, TimePoint now) {
  for (Job* job : jobs) {
    job->started_at = now;
    if (job->call_began != nullptr) *job->call_began = true;
    metrics_.queue_seconds(job->method, job->service_class).Observe(Seconds(now - job->arrival));
    LeaveQueue(*job);
    const auto waiting = static_cast<int32_t>(waiting_[static_cast<size_t>(job->service_class)]);
    estimate_.ObserveTurn(job->service_class, waiting > HeldBack(job->service_class), now);
  }
  inbox_.LeaveQueue(jobs);
  FindOldest();
  MutexLock lock(delivery_mutex_);
  for (Job* job : jobs) {
    if (!failed_) job->finish_sink->OnStarted();
  }
}

void RequestLoop::ObserveStep(size_t rows, int64_t tokens, Duration time, TimePoint now,
                              const absl::Status& status, const DeviceStats* device) {
  last_step_ = now;
  ++metrics_.steps;
  metrics_.step_seconds.Observe(Seconds(time));
  metrics_.step_rows.Observe(static_cast<double>(rows));
  metrics_.step_tokens.Observe(static_cast<double>(tokens));
  if (!status.ok()) return;
  failed_steps_ = 0;
  if (device == nullptr) return;
  metrics_.device_memory_used = device->memory_used;
  metrics_.device_memory_total = device->memory_total;
  metrics_.device_step_seconds.Observe(device->step_seconds);
  (device->step_was_graph ? metrics_.device_graph_steps : metrics_.device_eager_steps).Increment();
}

void RequestLoop::Fail(Job& job, absl::Status status, TimePoint now) {
  Outcome outcome;
  outcome.status = std::move(status);
  End(job, std::move(outcome), now);
}

void RequestLoop::End(Job& job, Outcome outcome, TimePoint now) {
  outcome.usage = job.usage;
  outcome.timings.queue = job.started_at.value_or(now) - job.arrival;
  if (job.first_output_at) outcome.timings.first_token = *job.first_output_at - job.arrival;
  outcome.timings.total = now - job.arrival;
  Remove(job, outcome);
  if (!job.started_at) {
    metrics_.queue_seconds(job.method, job.service_class).Observe(Seconds(outcome.timings.queue));
    LeaveQueue(job);
  }
  outcomes_.push_back(std::move(outcome));
  const auto it = jobs_.find(job.handle);
  finished_.push_back(std::move(it->second));
  jobs_.erase(it);
}

void RequestLoop::FailStep(const std::vector<Job*>& jobs, size_t rows, const absl::Status& status,
                           TimePoint now) {
  log::Error("engine.step_failed",
             {{"model", options_.model.name}, {"rows", rows}, {"error", status.ToString()}});
  metrics_.failures(EngineFailure::kStep).Increment();
  const bool lost = absl::IsUnavailable(status);
  if (lost || ++failed_steps_ >= options_.health.max_failed_steps) {
    const std::string last = status.ToString();
    return FailModel(
        lost ? absl::StrCat("its device is lost: ", last)
             : absl::StrCat(failed_steps_, " steps in a row failed, the last with: ", last));
  }
  for (Job* job : jobs) {
    Fail(*job, absl::InternalError(absl::StrCat("request ", job->id, ": a model step failed")),
         now);
  }
}

void RequestLoop::FailNotFinite(Job& job, TimePoint now) {
  metrics_.failures(EngineFailure::kNotFinite).Increment();
  Fail(job,
       absl::InternalError(absl::StrCat("request ", job.id, ": the model's output is not finite")),
       now);
}

// Runs after the budget and the metrics are up to date. So a client that has seen the end finds
// room for its next request, and the metrics page shows the request that ended.
void RequestLoop::DeliverFinished() {
  PublishGauges();
  FindOldest();
  if (finished_.empty()) return;
  inbox_.Leave(finished_);
  {
    MutexLock lock(accepted_mutex_);
    for (std::unique_ptr<Job>& job : finished_) {
      if (accepted_.erase(job->handle) == 0) job.reset();  // it ended with the model
    }
  }
  for (size_t i = 0; i < finished_.size(); ++i) {
    const Job* const job = finished_[i].get();
    if (job != nullptr) Finish(*job->finish_sink, EndingOf(*job, outcomes_[i]), outcomes_[i]);
  }
  finished_.clear();
  outcomes_.clear();
}

void RequestLoop::Finish(FinishSink& sink, Ending ending, const Outcome& outcome) {
  metrics_.finished(ending).Increment();
  sink.OnFinished(outcome);
}

// Runs on the engine thread, or on another one while the engine thread is stuck.
void RequestLoop::FailModel(const std::string& reason) {
  std::unordered_map<RequestHandle, Accepted> accepted;
  {
    MutexLock delivery_lock(delivery_mutex_);
    if (std::exchange(failed_, true)) return;
    state_changed_.NotifyAll();
    // Once the engine thread sees failed_, it empties the inbox for the last time. No request may
    // be added after that.
    MutexLock accepted_lock(accepted_mutex_);
    refuse_ = true;
    accepted.swap(accepted_);
  }
  log::Error(
      "model.failed",
      {{"model", options_.model.name}, {"error", reason}, {"requests_ended", accepted.size()}});
  ClearGauges();
  metrics_.failures(EngineFailure::kModel).Increment();
  options_.on_failed(reason);
  const TimePoint now = Now();
  for (const auto& [handle, request] : accepted) {
    Outcome outcome;
    outcome.status = HasFailed();
    outcome.usage = request.usage;
    outcome.timings.total = now - request.arrival;
    Finish(*request.sink, Ending::kFailed, outcome);
  }
}

void RequestLoop::ClearGauges() {
  oldest_waiting_ = TimePoint::max();
  metrics_.requests_running.Set({});
  metrics_.requests_waiting.Set({});
  metrics_.waiting_tokens.Set(0);
  metrics_.requests_parked.Set(0);
  metrics_.slots_used.Set(0);
  metrics_.slots_total.Set(0);
}

absl::Status RequestLoop::HasFailed() const {
  return absl::UnavailableError(absl::StrCat("model \"", options_.model.name, "\" has failed"));
}

}  // namespace aft::server
