#include "client/aftload/load_run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/lib/error_details.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;

// Keeps a closed loop from spinning when requests fail.
constexpr milliseconds kPauseAfterError{100};
// How often Run looks at its CancelToken, which does not wake it.
constexpr milliseconds kTick{50};
constexpr size_t kShards = 16;

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Whether no part of the answer has arrived and another attempt may succeed. CANCELLED occurs when
// the call met the GOAWAY of a server that drains. `broken`: a lost connection counts too.
bool IsRefusal(const absl::Status& status, bool broken) {
  const ErrorDetails details = GetErrorDetails(status);
  return (absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
          absl::IsCancelled(status)) &&
         (broken || details.origin != ErrorOrigin::kConnectionLost) &&
         details.origin != ErrorOrigin::kCaller && details.may_retry &&
         details.received_tokens == 0 && !details.usage;
}

}  // namespace

// One request, from its first attempt to its end. It deletes itself.
class LoadRun::Stream final : public GenerateListener {
 public:
  Stream(LoadRun& run, const Schedule::Slot& slot)
      : run_(run),
        scheduled_(slot.time),
        reference_(run.references_.empty() ? nullptr
                                           : &run.references_[slot.index % run.references_.size()]),
        planned_(run.workload_.Make(
            run.first_index_ +
            (reference_ == nullptr ? slot.index : slot.index % run.references_.size()))),
        target_(slot.index % run.options_.targets.size()),
        transport_(*run.transports_[slot.index % run.transports_.size()]),
        shard_(*run.shards_[slot.index % kShards]),
        // With the id of this process, so that the servers' logs tell the streams of different runs
        // apart.
        request_id_(run.options_.resume ? absl::StrCat("aftload-", getpid(), "-", slot.index) : ""),
        recorder_(planned_.request.stop().max_tokens(), slot.time, planned_.behaviour,
                  run.options_.limits, run.options_.targets[target_].address, request_id_),
        verifier_(reference_) {}

  // Records the request as cut, in place of Send.
  void Cut() {
    MutexLock lock(shard_.mutex);
    recorder_.OnOther(shard_.stats, &Outcomes::cut);
  }

  void Send() {
    if (run_.over_) {
      Cut();
      return Leave(milliseconds(0));
    }
    sent_ = Clock::now();
    if (++attempts_ == 1) {
      MutexLock lock(shard_.mutex);
      recorder_.OnSent(shard_.stats, sent_);
    }
    CallOptions call{.deadline = milliseconds(0),
                     .request_id = request_id_,
                     .cancel = &run_.cut_,
                     .on_resumed = [this](const Resumed& resumed) {
                       const auto now = Clock::now();
                       MutexLock lock(shard_.mutex);
                       recorder_.OnResumed(shard_.stats, resumed, now);
                     }};
    if (planned_.behaviour == Behaviour::kDeadline) {
      const auto due = scheduled_ + run_.options_.workload.deadline;
      call.deadline = std::max(std::chrono::ceil<milliseconds>(due - sent_), milliseconds(1));
    }
    transport_.StartGenerate(planned_.request, *this, call);
  }

  Next OnEvent(const v1::GenerateResponse& event) override {
    const auto now = Clock::now();
    Next next;
    MutexLock lock(shard_.mutex);
    if (event.has_started() && !begun_) {
      begun_ = true;
      shard_.stats.prompt_tokens += event.started().prompt_tokens();
    }
    if (event.has_delta()) {
      // Over HTTP, a message does not say how many tokens it has; the usage at the end does.
      const bool one = run_.options_.http && !event.delta().text().empty();
      const auto tokens = static_cast<uint64_t>(event.delta().token_ids_size());
      recorder_.OnTokens(shard_.stats, one ? 1 : tokens, now);
      verifier_.OnDelta(event.delta(), shard_.stats.differences);
    }
    if (run_.options_.http && event.has_finished()) {
      shard_.stats.prompt_tokens += event.finished().usage().prompt_tokens();
      recorder_.OnUsage(shard_.stats, event.finished().usage().generated_tokens(), now);
    }
    if (planned_.behaviour == Behaviour::kSlow) next.pause = run_.options_.workload.slow_pause;
    next.cancel =
        planned_.behaviour == Behaviour::kCancels && recorder_.tokens() >= planned_.cancel_after;
    return next;
  }

  void OnEnd(const absl::Status& status) override {
    const auto now = Clock::now();
    const milliseconds pause = GetErrorDetails(status).retry_after.value_or(kPauseAfterError);
    if (Record(status, now)) {
      run_.At(now + pause, [this] { Send(); });
    } else {
      Leave(status.ok() || GetErrorDetails(status).origin == ErrorOrigin::kCaller ? milliseconds(0)
                                                                                  : pause);
    }
  }

 private:
  // Returns whether the request is to be sent again.
  bool Record(const absl::Status& status, Clock::time_point now) {
    MutexLock lock(shard_.mutex);
    LoadStats& stats = shard_.stats;
    if (status.ok()) {
      recorder_.OnCompleted(stats, now);
      verifier_.OnCompleted(stats.differences);
      return false;
    }
    if (GetErrorDetails(status).origin == ErrorOrigin::kCaller) {
      recorder_.OnOther(stats, run_.over_ ? &Outcomes::cut : &Outcomes::cancelled);
      return false;
    }
    if (planned_.behaviour == Behaviour::kDeadline && absl::IsDeadlineExceeded(status)) {
      recorder_.OnOther(stats, &Outcomes::expired);
      return false;
    }
    if (IsRefusal(status, run_.options_.resume)) {
      ++stats.refused;
      stats.refusal.Add(now - sent_);
      if (attempts_ < run_.options_.attempts) {
        ++stats.retried;
        return true;
      }
    }
    recorder_.OnFailed(stats, absl::StatusCodeToString(status.code()), now);
    return false;
  }

  void Leave(milliseconds pause) {
    LoadRun& run = run_;
    delete this;
    run.Next(pause);
  }

  LoadRun& run_;
  const Clock::time_point scheduled_;
  const Reference* const reference_;  // null: no comparison
  const PlannedRequest planned_;
  const size_t target_;
  Transport& transport_;
  Shard& shard_;
  const std::string request_id_;
  StreamRecorder recorder_;
  StreamVerifier verifier_;
  uint32_t attempts_ = 0;
  bool begun_ = false;  // Started has come; it may come again in a later attempt
  Clock::time_point sent_;
};

LoadRun::LoadRun(const LoadOptions& options, const Workload& workload, uint64_t first_index,
                 const std::vector<Reference>& references,
                 const std::vector<std::unique_ptr<Transport>>& transports, CancelToken& cancel)
    : options_(options),
      workload_(workload),
      first_index_(first_index),
      references_(references),
      transports_(transports),
      cancel_(cancel),
      start_(Clock::now()),
      schedule_(options.arrivals, start_) {
  for (size_t i = 0; i < kShards; ++i) shards_.push_back(std::make_unique<Shard>(start_));
}

LoadRun::~LoadRun() = default;

void LoadRun::At(Clock::time_point time, std::function<void()> what) {
  MutexLock lock(mutex_);
  timers_.emplace(time, std::move(what));
  changed_.NotifyAll();
}

void LoadRun::ScheduleArrival() {
  MutexLock lock(mutex_);
  const std::optional<Schedule::Slot> slot = schedule_.Next(Clock::now());
  if (!slot) return;
  timers_.emplace(slot->time, [this, slot = *slot] {
    if (over_ && slot.time > Clock::now()) return;  // interrupted before it was due
    ScheduleArrival();
    {
      MutexLock inner_lock(mutex_);
      if (running_ >= options_.streams && !over_) {
        waiting_.push_back(slot);
        return;
      }
      ++running_;
      // A request that comes due after the end is not sent.
      if (!over_) max_running_ = std::max(max_running_, running_);
    }
    Launch(slot);
  });
}

void LoadRun::Launch(const Schedule::Slot& slot) { (new Stream(*this, slot))->Send(); }

void LoadRun::Next(milliseconds pause) {
  std::optional<Schedule::Slot> slot;
  {
    MutexLock lock(mutex_);
    if (open()) {
      if (!waiting_.empty() && !over_) {
        slot = waiting_.front();
        waiting_.pop_front();
      }
    } else if (!over_) {
      if (pause.count() > 0) {
        timers_.emplace(Clock::now() + pause, [this] { Next(milliseconds(0)); });
        changed_.NotifyAll();
        return;
      }
      slot = schedule_.Next(Clock::now());
    }
    if (!slot) {
      --running_;
      changed_.NotifyAll();
      return;
    }
  }
  Launch(*slot);
}

void LoadRun::End() {
  over_ = true;
  cut_.Cancel();
  std::deque<Schedule::Slot> unsent;
  {
    MutexLock lock(mutex_);
    unsent.swap(waiting_);
  }
  for (const Schedule::Slot& slot : unsent) Stream(*this, slot).Cut();
}

Progress LoadRun::GetProgress() {
  Progress progress{.seconds = Seconds(Clock::now() - start_)};
  for (const auto& shard : shards_) {
    MutexLock lock(shard->mutex);
    progress.tokens += shard->stats.tokens;
    for (const Outcomes& outcomes : shard->stats.outcomes) {
      progress.completed += outcomes.completed;
      progress.failed += outcomes.failed();
    }
  }
  MutexLock lock(mutex_);
  progress.running = running_;
  progress.waiting = waiting_.size();
  return progress;
}

LoadReport LoadRun::Run(const std::function<void(const Progress&)>& on_progress) {
  const double cpu_before = CpuSeconds();
  const auto end = start_ + options_.arrivals.duration + options_.drain;
  std::atomic<bool> done = false;
  // Waits for connections, because calls that fail at once do not.
  std::thread connector([this, &done] {
    while (!done) {
      for (const auto& transport : transports_) transport->KeepConnected();
      std::this_thread::sleep_for(kTick);
    }
  });
  if (open()) {
    ScheduleArrival();
  } else {
    const auto streams =
        static_cast<uint32_t>(std::min<uint64_t>(options_.streams, options_.arrivals.requests));
    {
      MutexLock lock(mutex_);
      running_ = max_running_ = streams;
    }
    for (uint32_t i = 0; i < streams; ++i) Next(milliseconds(0));
  }

  auto next_progress = start_ + std::chrono::seconds(1);
  while (true) {
    const auto now = Clock::now();
    if (!over_ && (now >= end || cancel_.cancelled())) End();
    if (on_progress && now >= next_progress) {
      on_progress(GetProgress());
      next_progress = now + std::chrono::seconds(1);
    }
    std::function<void()> due;
    {
      MutexLock lock(mutex_);
      if (running_ == 0 && waiting_.empty() && timers_.empty()) break;
      const auto first = timers_.begin();
      if (first != timers_.end() && (over_ || first->first <= now)) {
        due = std::move(first->second);
        timers_.erase(first);
      } else {
        const auto wake = std::min(now + kTick, end > now ? end : now + kTick);
        changed_.WaitUntil(mutex_, first == timers_.end() ? wake : std::min(wake, first->first));
      }
    }
    if (due) due();
  }

  LoadReport report{.stats = LoadStats(start_)};
  report.seconds = Seconds(Clock::now() - start_);
  report.client_cpu_seconds = CpuSeconds() - cpu_before;
  done = true;
  connector.join();
  for (const auto& shard : shards_) {
    MutexLock lock(shard->mutex);
    report.stats.Merge(shard->stats);
  }
  MutexLock lock(mutex_);
  report.max_running = max_running_;
  return report;
}

}  // namespace aft::client
