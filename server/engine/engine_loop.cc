#include "server/engine/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

Ending EndingOf(const Outcome& outcome) {
  switch (outcome.status.code()) {
    case absl::StatusCode::kOk:
      switch (outcome.reason) {
        case FinishReason::kEos:
          return Ending::kEos;
        case FinishReason::kStop:
          return Ending::kStop;
        case FinishReason::kLength:
          return Ending::kLength;
      }
      return Ending::kError;
    case absl::StatusCode::kCancelled:
      return Ending::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return Ending::kDeadline;
    case absl::StatusCode::kUnavailable:
      return Ending::kShutdown;
    case absl::StatusCode::kResourceExhausted:
      return Ending::kSlowClient;
    default:
      return Ending::kError;
  }
}

Outcome Failed(absl::Status status) {
  Outcome outcome;
  outcome.status = std::move(status);
  return outcome;
}

}  // namespace

EngineLoop::EngineLoop(EngineOptions options, std::unique_ptr<ModelRunner> runner,
                       std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics)
    : options_(std::move(options)),
      runner_(std::move(runner)),
      info_(runner_->info()),
      tokenizer_(std::move(tokenizer)),
      metrics_(metrics),
      inbox_(AdmissionBudget(runner_->slots(), options_.max_queued_requests,
                             options_.max_queued_tokens)),
      scheduler_(runner_->slots(), options_.max_step_tokens),
      inter_token_(metrics.inter_token_seconds, LatencyBuckets()) {
  metrics_.slots_total.Set(runner_->slots());
  MutexLock lock(join_mutex_);
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() { Shutdown(TimePoint::min()); }

absl::StatusOr<Engine::Handle> EngineLoop::Submit(GenerationRequest request,
                                                  std::shared_ptr<ResponseSink> sink) {
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    return Refuse(Rejection::kInvalid, std::move(status));
  }
  const Inbox::AddResult result = inbox_.Add(std::make_unique<Stream>(
      std::move(request), std::move(sink), *tokenizer_, info_.max_seq_len));
  if (!result.refused) return result.handle;
  switch (*result.refused) {
    case Rejection::kQueuedRequests:
      return Refuse(*result.refused,
                    absl::ResourceExhaustedError(absl::StrCat("queue full: max_queued_requests=",
                                                              options_.max_queued_requests)));
    case Rejection::kQueuedTokens:
      return Refuse(*result.refused,
                    absl::ResourceExhaustedError(absl::StrCat("queue full: max_queued_tokens=",
                                                              options_.max_queued_tokens)));
    default:
      return Refuse(*result.refused, absl::UnavailableError("the server is draining"));
  }
}

// The edge validates too; here it protects the neighbours in the batch, because a step that the
// runner refuses ends all of its sequences.
absl::Status EngineLoop::CheckRequest(const GenerationRequest& request) const {
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  if (tokens == 0) return absl::InvalidArgumentError("prompt: is empty");
  if (info_.max_seq_len != 0 && tokens >= info_.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt: ", tokens, " tokens and at least one more exceed the model's ",
                     "max_seq_len=", info_.max_seq_len));
  }
  for (const TokenId id : request.prompt) {
    if (id < 0 || id >= info_.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt: token id ", id, " is outside the vocabulary of ", info_.vocab_size));
    }
  }
  if (request.stop.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop.max_tokens: ", request.stop.max_tokens, " is below 1"));
  }
  return absl::OkStatus();
}

absl::Status EngineLoop::Refuse(Rejection reason, absl::Status status) {
  metrics_.rejected(reason).Increment();
  return status;
}

void EngineLoop::Shutdown(TimePoint deadline) {
  inbox_.Stop(deadline);
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void EngineLoop::Run() {
  pthread_setname_np(pthread_self(), "aft-engine");
  for (Inbox::Batch batch;;) {
    inbox_.Take(/*wait=*/streams_.empty(), batch);
    for (std::unique_ptr<Stream>& stream : batch.added) {
      next_deadline_ = std::min(next_deadline_, stream->deadline);
      scheduler_.Add(*stream);
      const Handle handle = stream->handle;
      streams_.emplace(handle, std::move(stream));
    }
    DropCancelled(batch.cancelled);
    const TimePoint now = options_.clock();
    DropExpired(now);
    const bool stop = batch.stop_at && (streams_.empty() || now >= *batch.stop_at);
    if (stop) DropAll(absl::UnavailableError("the server is shutting down"));
    DeliverFinished();
    if (stop) return;
    RunStep();
    DeliverFinished();
  }
}

void EngineLoop::DropCancelled(const std::vector<Handle>& handles) {
  for (const Handle handle : handles) {
    const auto it = streams_.find(handle);
    if (it == streams_.end()) continue;  // finished meanwhile
    Finish(*it->second, Failed(absl::CancelledError("the client cancelled the request")),
           options_.clock());
  }
}

void EngineLoop::DropExpired(TimePoint now) {
  if (now < next_deadline_) return;
  next_deadline_ = TimePoint::max();
  std::vector<Stream*> expired;
  for (const auto& [handle, stream] : streams_) {
    if (now >= stream->deadline) {
      expired.push_back(stream.get());
    } else {
      next_deadline_ = std::min(next_deadline_, stream->deadline);
    }
  }
  for (Stream* stream : expired) {
    Finish(*stream, Failed(absl::DeadlineExceededError("the client's deadline has passed")), now);
  }
}

void EngineLoop::DropAll(const absl::Status& status) {
  const TimePoint now = options_.clock();
  while (!streams_.empty()) Finish(*streams_.begin()->second, Failed(status), now);
}

void EngineLoop::RunStep() {
  const Step& step = scheduler_.Schedule();
  if (step.empty()) return;
  const TimePoint begin = options_.clock();
  Start(step, begin);
  absl::StatusOr<StepOutput> output = RunModel(step);
  const TimePoint end = options_.clock();
  metrics_.step_seconds.Observe(Seconds(end - begin));
  metrics_.step_rows.Observe(static_cast<double>(step.sequences.size()));
  metrics_.step_tokens.Observe(static_cast<double>(step.tokens));
  if (!output.ok()) {
    log::Error("engine.step_failed", {{"model", options_.model_name},
                                      {"rows", step.sequences.size()},
                                      {"error", output.status().ToString()}});
    for (Sequence* sequence : step.sequences) {
      auto& stream = static_cast<Stream&>(*sequence);
      Finish(
          stream,
          Failed(absl::InternalError(absl::StrCat("request ", stream.id, ": a model step failed"))),
          end);
    }
    return;
  }
  metrics_.prompt_tokens.Increment(static_cast<double>(step.prompt_tokens));
  metrics_.generated_tokens.Increment(static_cast<double>(output->sampled.size()));
  size_t next = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.input.rows[i].output != RowOutput::kLast) continue;
    Publish(static_cast<Stream&>(*step.sequences[i]), std::move(output->sampled[next++]), end);
  }
  inter_token_.Flush();
}

// Binds the slots of the sequences that this step is the first of.
void EngineLoop::Start(const Step& step, TimePoint now) {
  for (Sequence* sequence : step.started) {
    auto& stream = static_cast<Stream&>(*sequence);
    runner_->BindSlot(stream.slot(), stream.sampling);
    stream.started_at = now;
    metrics_.queue_seconds.Observe(Seconds(now - stream.arrival));
  }
  inbox_.LeaveQueue(step.started);
}

absl::StatusOr<StepOutput> EngineLoop::RunModel(const Step& step) {
  AFT_ASSIGN_OR_RETURN(const ModelRunner::Ticket ticket, runner_->Submit(step.input));
  AFT_ASSIGN_OR_RETURN(StepOutput output, runner_->Collect(ticket));
  const auto expected =
      std::count_if(step.input.rows.begin(), step.input.rows.end(),
                    [](const StepRow& r) { return r.output == RowOutput::kLast; });
  if (static_cast<size_t>(expected) != output.sampled.size()) {
    return absl::InternalError(absl::StrCat("the model sampled ", output.sampled.size(),
                                            " tokens for ", expected, " rows"));
  }
  return output;
}

void EngineLoop::Publish(Stream& stream, SampledToken token, TimePoint now) {
  if (token.id == kNoToken) {
    Finish(stream,
           Failed(absl::InternalError(
               absl::StrCat("request ", stream.id, ": the model's output is not finite"))),
           now);
    return;
  }
  if (stream.first_token_at) {
    inter_token_.Add(Seconds(now - stream.last_token_at));
  } else {
    stream.first_token_at = now;
    metrics_.ttft_seconds.Observe(Seconds(now - stream.arrival));
  }
  stream.last_token_at = now;
  scheduler_.Sampled(stream, token.id);

  TokenDelta delta;
  Outcome outcome;
  const bool ended = stream.output.Append(std::move(token), delta, outcome);
  const bool news = !delta.tokens.empty() || !delta.text.empty();
  if (news && !stream.sink->OnDelta(std::move(delta))) {
    Finish(
        stream,
        Failed(absl::ResourceExhaustedError("slow client: it reads slower than the model writes")),
        now);
  } else if (ended) {
    Finish(stream, std::move(outcome), now);
  }
}

void EngineLoop::Finish(Stream& stream, Outcome outcome, TimePoint now) {
  scheduler_.Remove(stream);
  outcome.usage.prompt_tokens = static_cast<uint32_t>(stream.prompt_size());
  outcome.usage.generated_tokens = stream.output.tokens();
  if (stream.started_at) outcome.timings.queue = *stream.started_at - stream.arrival;
  if (stream.first_token_at) outcome.timings.first_token = *stream.first_token_at - stream.arrival;
  outcome.timings.total = now - stream.arrival;
  outcomes_.push_back(std::move(outcome));
  const auto it = streams_.find(stream.handle);
  finished_.push_back(std::move(it->second));
  streams_.erase(it);
}

// After the budget and the metrics are up to date, so that a client that has seen the end finds
// room for its next request, and the metrics page shows the one that ended.
void EngineLoop::DeliverFinished() {
  PublishGauges();
  if (finished_.empty()) return;
  inbox_.Leave(finished_);
  for (const Outcome& outcome : outcomes_) {
    metrics_.finished(EndingOf(outcome)).Increment();
    metrics_.e2e_seconds.Observe(Seconds(outcome.timings.total));
  }
  for (size_t i = 0; i < finished_.size(); ++i) finished_[i]->sink->OnFinished(outcomes_[i]);
  finished_.clear();
  outcomes_.clear();
}

void EngineLoop::PublishGauges() {
  metrics_.requests_running.Set(scheduler_.live());
  metrics_.requests_waiting.Set(scheduler_.waiting());
  metrics_.slots_used.Set(scheduler_.slots().used());
}

}  // namespace aft::server
