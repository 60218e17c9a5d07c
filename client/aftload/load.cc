#include "client/aftload/load.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/lib/aft_client.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;

// A failed request does not make a closed loop spin.
constexpr milliseconds kPauseAfterError{100};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// False when the run was cancelled meanwhile.
bool SleepUntil(Clock::time_point time, const CancelToken& cancel) {
  constexpr milliseconds kSlice{50};
  while (!cancel.cancelled()) {
    const auto now = Clock::now();
    if (now >= time) return true;
    std::this_thread::sleep_until(std::min(time, now + kSlice));
  }
  return false;
}

// `bytes` bytes of English words, lower case, drawn by `seed`.
std::string RandomPrompt(size_t bytes, uint64_t seed) {
  constexpr std::array<const char*, 16> kWords = {
      "the",   "and",    "she",    "he",   "of",     "to",    "in",  "was",
      "house", "letter", "sister", "very", "always", "could", "not", "evening"};
  std::mt19937_64 random(seed);
  std::string prompt;
  prompt.reserve(bytes + 8);
  while (prompt.size() < bytes) {
    prompt += kWords[random() % kWords.size()];
    prompt += ' ';
  }
  prompt.resize(bytes);
  return prompt;
}

v1::GenerateRequest MakeRequest(const LoadOptions& options, uint64_t index) {
  v1::GenerateRequest request;
  request.set_model(options.model);
  request.set_text(options.prompt.empty() ? RandomPrompt(options.prompt_bytes, options.seed + index)
                                          : options.prompt);
  request.mutable_sampling()->set_seed(options.seed + index);
  request.mutable_stop()->set_max_tokens(options.max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// Nothing of the answer has come, and another attempt may fare better. CANCELLED: the call met the
// GOAWAY of a server that drains.
bool IsRefusal(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  return (absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
          absl::IsCancelled(status)) &&
         details.origin != ErrorOrigin::kConnectionLost && details.origin != ErrorOrigin::kCaller &&
         details.received_tokens == 0 && !details.usage;
}

// One stream after the other, until the schedule ends.
class Worker {
 public:
  Worker(const LoadOptions& options, Client& client, Schedule& schedule, Clock::time_point end,
         CancelToken& cancel)
      : options_(options), client_(client), schedule_(schedule), end_(end), cancel_(cancel) {}

  void Run() {
    while (!cancel_.cancelled()) {
      const std::optional<Schedule::Slot> slot = schedule_.Next();
      if (!slot || !SleepUntil(slot->time, cancel_)) return;
      const absl::Status status = RunRequest(*slot);
      if (status.ok() || options_.rate > 0) continue;
      if (!PauseAfter(status)) return;
    }
  }

  const LoadStats& stats() const { return stats_; }

 private:
  absl::Status RunRequest(const Schedule::Slot& slot) {
    if (Clock::now() >= end_) {  // scheduled in time, but every stream was busy until the end
      ++stats_.cut;
      return absl::OkStatus();
    }
    StreamRecorder recorder(options_.max_tokens, slot.time, stats_);
    const auto on_event = [&recorder](const v1::GenerateResponse& event) {
      if (!event.has_delta()) return;
      recorder.OnTokens(static_cast<uint64_t>(event.delta().token_ids_size()), Clock::now());
    };
    const v1::GenerateRequest request = MakeRequest(options_, slot.index);
    for (uint32_t attempt = 1;; ++attempt) {
      const absl::Status status = client_.Generate(request, on_event, Options()).status();
      const auto now = Clock::now();
      if (status.ok()) {
        recorder.OnCompleted(now);
        return status;
      }
      const bool refused = IsRefusal(status);
      if (refused) ++stats_.refused;
      if (cancel_.cancelled() ||
          (IsTimeUp(now) && (status.code() == absl::StatusCode::kDeadlineExceeded ||
                             status.code() == absl::StatusCode::kCancelled))) {
        ++stats_.cut;
        return status;
      }
      if (!refused || attempt == options_.attempts) {
        ++stats_.errors[absl::StatusCodeToString(status.code())];
        return status;
      }
      ++stats_.retried;
      if (!PauseAfter(status)) {
        ++stats_.cut;
        return absl::OkStatus();
      }
    }
  }

  // For as long as the server said, or a moment. False when the run was cancelled meanwhile.
  bool PauseAfter(const absl::Status& status) {
    const auto now = Clock::now();
    const auto until =
        std::min(end_, now + GetErrorDetails(status).retry_after.value_or(kPauseAfterError));
    if (client_.WaitForServer(milliseconds(0))) return SleepUntil(until, cancel_);
    // A connection comes about while somebody waits for it: calls that fail at once do not.
    client_.WaitForServer(std::chrono::ceil<milliseconds>(until - now));
    return !cancel_.cancelled();
  }

  CallOptions Options() const {
    const auto left = std::chrono::ceil<milliseconds>(end_ - Clock::now());
    return {.deadline = std::max(left, milliseconds(1)), .cancel = &cancel_};
  }

  // Client and server each watch the deadline on a clock of their own.
  bool IsTimeUp(Clock::time_point now) const { return now + milliseconds(10) >= end_; }

  const LoadOptions& options_;
  Client& client_;
  Schedule& schedule_;
  const Clock::time_point end_;
  CancelToken& cancel_;
  LoadStats stats_;
};

using Clients = std::vector<std::unique_ptr<Client>>;

LoadReport RunPhase(const LoadOptions& options, const Clients& clients, CancelToken& cancel) {
  const auto start = Clock::now();
  const double cpu_before = CpuSeconds();
  const auto end = start + options.duration;
  Schedule schedule(options, start);
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t i = 0; i < options.streams; ++i) {
    workers.push_back(
        std::make_unique<Worker>(options, *clients[i % clients.size()], schedule, end, cancel));
  }
  std::vector<std::thread> threads;
  for (const auto& worker : workers) threads.emplace_back([&worker] { worker->Run(); });
  for (std::thread& thread : threads) thread.join();

  LoadReport report;
  for (const auto& worker : workers) report.stats.Merge(worker->stats());
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.client_cpu_seconds = CpuSeconds() - cpu_before;
  return report;
}

}  // namespace

Schedule::Schedule(const LoadOptions& options, Clock::time_point start)
    : rate_(options.rate),
      max_requests_(options.requests),
      start_(start),
      end_(start + options.duration),
      random_(options.seed) {}

std::optional<Schedule::Slot> Schedule::Next() {
  MutexLock lock(mutex_);
  if (next_index_ >= max_requests_) return std::nullopt;
  Clock::time_point time;
  if (rate_ > 0) {
    next_offset_ +=
        std::chrono::duration<double>(std::exponential_distribution<double>(rate_)(random_));
    time = start_ + std::chrono::duration_cast<Clock::duration>(next_offset_);
  } else {
    time = Clock::now();
  }
  if (time >= end_) return std::nullopt;
  return Slot{.index = next_index_++, .time = time};
}

absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, CancelToken& cancel) {
  Clients clients;
  for (uint32_t i = 0; i < options.connections; ++i) {
    ClientOptions client_options = options.client;
    // Refusals are counted here, one by one.
    client_options.max_attempts = 1;
    client_options.connect_timeout = milliseconds(1000);
    client_options.channel_args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 400);
    // Channels to one address share their connection otherwise.
    client_options.channel_args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    AFT_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Create(client_options));
    AFT_RETURN_IF_ERROR(
        client->ListModels({.deadline = milliseconds(10'000), .cancel = &cancel}).status());
    // No measured request pays for it. A server that does not serve yet is measured as such.
    client->WaitForServer(milliseconds(10'000));
    clients.push_back(std::move(client));
  }
  if (options.warmup > 0) {
    LoadOptions warmup = options;
    warmup.rate = 0;
    warmup.requests = options.warmup;
    warmup.seed += options.requests;  // other prompts than the measured ones
    RunPhase(warmup, clients, cancel);
  }
  return RunPhase(options, clients, cancel);
}

}  // namespace aft::client
