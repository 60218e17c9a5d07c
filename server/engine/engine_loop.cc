#include "server/engine/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/device_metrics.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

// That the model answered every row as asked.
absl::Status CheckOutput(const Step& step, const StepOutput& output) {
  size_t sampled = 0;
  size_t scored = 0;
  for (const StepRow& row : step.input.rows) {
    if (row.output == RowOutput::kLast) ++sampled;
    if (row.output != RowOutput::kScore) continue;
    if (scored < output.scored.size() && output.scored[scored].size() != row.targets.size()) {
      return absl::InternalError(absl::StrCat("the model scored ", output.scored[scored].size(),
                                              " of ", row.targets.size(), " tokens"));
    }
    ++scored;
  }
  if (sampled == output.sampled.size() && scored == output.scored.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the model sampled ", output.sampled.size(),
                                          " and scored ", output.scored.size(), " rows instead of ",
                                          sampled, " and ", scored));
}

}  // namespace

EngineLoop::EngineLoop(EngineOptions options, std::unique_ptr<ModelRunner> runner,
                       std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics)
    : options_(std::move(options)),
      runner_(std::move(runner)),
      info_(runner_->info()),
      tokenizer_(std::move(tokenizer)),
      metrics_(metrics),
      scheduler_(runner_->slots(), options_.max_step_tokens, runner_->max_steps_in_flight()),
      inter_token_(metrics.inter_token_seconds, LatencyBuckets()),
      loop_({.thread_name = "aft-engine",
             .slots = runner_->slots(),
             .max_queued_requests = options_.max_queued_requests,
             .max_queued_tokens = options_.max_queued_tokens,
             .clock = options_.clock},
            metrics, *this) {}

absl::StatusOr<EngineControl::Handle> EngineLoop::Submit(GenerationRequest request,
                                                         std::shared_ptr<ResponseSink> sink) {
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    metrics_.rejected(Rejection::kInvalid).Increment();
    return status;
  }
  return loop_.Submit(std::make_unique<Stream>(std::move(request), std::move(sink), *tokenizer_,
                                               info_.max_seq_len));
}

absl::StatusOr<EngineControl::Handle> EngineLoop::Submit(ScoringRequest request,
                                                         std::shared_ptr<ResponseSink> sink) {
  absl::Status status = CheckTokens(request.text, info_.vocab_size, info_.max_seq_len);
  if (!status.ok()) {
    metrics_.rejected(Rejection::kInvalid).Increment();
    return status;
  }
  return loop_.Submit(std::make_unique<Stream>(std::move(request), std::move(sink)));
}

absl::Status EngineLoop::CheckRequest(const GenerationRequest& request) const {
  AFT_RETURN_IF_ERROR(CheckTokens(request.prompt, info_.vocab_size, /*max_tokens=*/0));
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  if (info_.max_seq_len != 0 && tokens >= info_.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt: ", tokens, " tokens and at least one more exceed the model's ",
                     "max_seq_len=", info_.max_seq_len));
  }
  if (request.stop.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop.max_tokens: ", request.stop.max_tokens, " is below 1"));
  }
  return absl::OkStatus();
}

void EngineLoop::Add(Job& job) { scheduler_.Add(static_cast<Stream&>(job)); }

void EngineLoop::Remove(Job& job, Outcome& outcome) {
  auto& stream = static_cast<Stream&>(job);
  scheduler_.Remove(stream);
  if (stream.output) outcome.usage.generated_tokens = stream.output->tokens();
  outcome.usage.scored_tokens = stream.scored_tokens;
  outcome.scored_bytes = stream.scored_bytes;
  outcome.logprob = stream.logprob;
}

TimePoint EngineLoop::Advance(bool /*closed*/) {
  const Step* const step = scheduler_.Schedule();
  if (step != nullptr) Submit(*step);
  if (!flights_.empty() && !flights_.back().ticket.ok()) {
    // Refused: its sequences must be out before the next step is planned.
    while (!flights_.empty()) Collect();
  } else if (!flights_.empty() &&
             (step == nullptr || scheduler_.in_flight() == runner_->max_steps_in_flight())) {
    Collect();
  }
  const bool busy = !flights_.empty() || scheduler_.live() + scheduler_.waiting() > 0;
  return busy ? TimePoint::min() : TimePoint::max();
}

void EngineLoop::Submit(const Step& step) {
  const TimePoint now = options_.clock();
  Start(step, now);
  metrics_.step_rows.Observe(static_cast<double>(step.sequences.size()));
  metrics_.step_tokens.Observe(static_cast<double>(step.tokens));
  flights_.push_back({now, runner_->Submit(step.input)});
}

// Waits for the oldest step in flight.
void EngineLoop::Collect() {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  const Step& step = scheduler_.Retire();
  absl::StatusOr<StepOutput> output = Output(flight, step);
  const TimePoint now = options_.clock();
  // The time of a step that waited behind another one begins when that was done.
  metrics_.step_seconds.Observe(Seconds(now - std::max(flight.submitted, collected_at_)));
  collected_at_ = now;
  if (output.ok()) {
    PublishDeviceStats(runner_->device_stats(), metrics_);
    Publish(step, *std::move(output), now);
  } else {
    FailStep(step, output.status(), now);
  }
}

absl::StatusOr<StepOutput> EngineLoop::Output(const Flight& flight, const Step& step) {
  AFT_RETURN_IF_ERROR(flight.ticket.status());
  AFT_ASSIGN_OR_RETURN(StepOutput output, runner_->Collect(*flight.ticket));
  AFT_RETURN_IF_ERROR(CheckOutput(step, output));
  return output;
}

void EngineLoop::FailStep(const Step& step, const absl::Status& status, TimePoint now) {
  log::Error("engine.step_failed", {{"model", options_.model_name},
                                    {"rows", step.sequences.size()},
                                    {"error", status.ToString()}});
  for (Sequence* sequence : step.sequences) {
    if (sequence == nullptr) continue;
    auto& stream = static_cast<Stream&>(*sequence);
    loop_.Fail(stream,
               absl::InternalError(absl::StrCat("request ", stream.id, ": a model step failed")),
               now);
  }
}

void EngineLoop::Publish(const Step& step, StepOutput output, TimePoint now) {
  metrics_.prompt_tokens.Increment(static_cast<double>(step.prompt_tokens));
  size_t sampled = 0;
  size_t scored = 0;
  int64_t generated = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const StepRow& row = step.input.rows[i];
    auto* const stream = static_cast<Stream*>(step.sequences[i]);
    if (row.output == RowOutput::kLast) {
      SampledToken& token = output.sampled[sampled++];
      if (stream == nullptr) continue;  // it ended while the step was under way
      ++generated;
      PublishToken(*stream, std::move(token), now);
    } else if (row.output == RowOutput::kScore) {
      std::vector<SampledToken>& scores = output.scored[scored++];
      if (stream != nullptr) PublishScores(*stream, row, std::move(scores), now);
    }
  }
  metrics_.generated_tokens.Increment(static_cast<double>(generated));
  inter_token_.Flush();
}

// Binds the slots of the sequences that this step is the first of.
void EngineLoop::Start(const Step& step, TimePoint now) {
  std::vector<Job*> started;
  for (Sequence* sequence : step.started) {
    auto& stream = static_cast<Stream&>(*sequence);
    runner_->BindSlot(stream.slot(), stream.sampling);
    started.push_back(&stream);
  }
  loop_.Start(started, now);
}

void EngineLoop::PublishToken(Stream& stream, SampledToken token, TimePoint now) {
  if (token.id == kNoToken) return FailNotFinite(stream, now);
  if (stream.first_output_at) {
    inter_token_.Add(Seconds(now - stream.last_token_at));
  } else {
    stream.first_output_at = now;
    metrics_.ttft_seconds.Observe(Seconds(now - stream.arrival));
  }
  stream.last_token_at = now;
  scheduler_.Sampled(stream, token.id);

  TokenDelta delta;
  Outcome outcome;
  const bool ended = stream.output->Append(std::move(token), delta, outcome);
  Deliver(stream, std::move(delta), ended, std::move(outcome), now);
}

void EngineLoop::PublishScores(Stream& stream, const StepRow& row, std::vector<SampledToken> scores,
                               TimePoint now) {
  for (const SampledToken& score : scores) {
    if (score.id == kNoToken) return FailNotFinite(stream, now);
    stream.logprob += score.logprob;
    // A model's vocabulary may be padded beyond the tokenizer's.
    if (score.id < tokenizer_->vocab_size()) {
      stream.scored_bytes += tokenizer_->TokenBytes(score.id).size();
    }
  }
  stream.scored_tokens += static_cast<uint32_t>(scores.size());
  metrics_.scored_tokens.Increment(static_cast<double>(scores.size()));
  if (!stream.first_output_at && !scores.empty()) stream.first_output_at = now;

  TokenDelta delta;
  delta.first_index = static_cast<uint32_t>(row.first_position + 1);
  delta.tokens = std::move(scores);
  Outcome outcome;
  outcome.reason = FinishReason::kDone;
  const auto position = row.first_position + static_cast<int64_t>(row.tokens.size());
  Deliver(stream, std::move(delta), position == stream.prompt_size(), std::move(outcome), now);
}

void EngineLoop::Deliver(Stream& stream, TokenDelta delta, bool ended, Outcome outcome,
                         TimePoint now) {
  const bool news = !delta.tokens.empty() || !delta.text.empty();
  if (news && !stream.sink->OnDelta(std::move(delta))) {
    loop_.Fail(stream,
               absl::ResourceExhaustedError("slow client: it reads slower than the model writes"),
               now);
  } else if (ended) {
    loop_.End(stream, std::move(outcome), now);
  }
}

void EngineLoop::FailNotFinite(Stream& stream, TimePoint now) {
  loop_.Fail(stream,
             absl::InternalError(
                 absl::StrCat("request ", stream.id, ": the model's output is not finite")),
             now);
}

void EngineLoop::PublishGauges() {
  metrics_.requests_running.Set(scheduler_.live());
  metrics_.requests_waiting.Set(scheduler_.waiting());
  metrics_.slots_used.Set(scheduler_.slots().used());
}

}  // namespace aft::server
