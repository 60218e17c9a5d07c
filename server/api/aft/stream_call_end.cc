// Of StreamCall: how its sequences end, and the call with them.

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "server/api/aft/stream_call.h"
#include "server/api/aft/text_codec.h"
#include "server/call/outcome_sum.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"

namespace aft::server {
namespace {

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

void StreamCall::End(const Outcome& outcome, uint32_t sequence) {
  if (outcome.hand_over != nullptr) return HandOver(outcome, sequence);
  if (outcome.turn == nullptr) {
    if (!places_.empty()) places_[sequence] = {};
    return EndNow(outcome, sequence, std::nullopt);
  }
  environment_.decoders.Add(*client_, outcome.turn->text.size() + outcome.turn->outputs.size(),
                            [call = shared_from_this(), outcome = Outcome(outcome), sequence] {
                              call->Store(outcome, sequence);
                            });
}

// Takes the turn out of the outcome, whose status becomes the error where it cannot be
// stored.
void StreamCall::Store(Outcome outcome, uint32_t sequence) {
  StateAccess::Place place = std::exchange(places_[sequence], {});
  const std::shared_ptr<TurnEnd> turn = std::move(outcome.turn);
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    cancelled = cancelled_ || failed_;
  }
  if (cancelled) {  // nobody would learn of it
    place = {};
    return EndNow(outcome, sequence, std::nullopt);
  }
  auto end = [call = shared_from_this(), outcome,
              sequence](absl::StatusOr<v1::State> stored) mutable {
    if (stored.ok()) return call->EndNow(outcome, sequence, *std::move(stored));
    log::Error("request.store_failed", {{"id", call->ids_.request},
                                        {"error", stored.status().ToString()},
                                        {"trace_id", call->ids_.trace.trace_id}});
    outcome.status = stored.status();
    call->EndNow(outcome, sequence, std::nullopt);
  };
  std::optional<SequenceState> state;
  const absl::Status made = Catching([&] {
    state = MakeState(std::move(*turn));
    return absl::OkStatus();
  });
  if (made.ok()) {
    environment_.states.Put(std::move(place), *client_, model_->config.name, *std::move(state),
                            std::move(end));
  } else {
    place = {};
    end(made);
  }
}

void StreamCall::EndNow(const Outcome& outcome, uint32_t sequence,
                        std::optional<v1::State> stored) {
  std::optional<RequestHandle> cancel;
  bool pump = false;
  {
    MutexLock lock(mutex_);
    if (stored.has_value()) unknown_states_.push_back(stored->id());
    computed_tokens_ += outcome.computed_tokens;
    const bool last = ++ended_ == sequences_;
    bool news = last;
    if (sequences_ == 1) {
      stored_ = std::move(stored);
      outcome_ = outcome;
    } else {
      if (HasTexts() && total_.status.ok() && absl::IsInternal(outcome.status)) {
        failed_text_ = absl::StrCat("texts[", sequence, "]: ");
      }
      AddOutcome(outcome, total_);
      if (!outcome.status.ok()) {
        failed_ = true;
        if (!last) cancel = handle_;
      } else if (!cancelled_ && !failed_) {
        AppendFinished(outcome, sequence, stored.has_value() ? &*stored : nullptr);
        Recharge();
        news = true;
      }
      if (last) outcome_ = total_;
    }
    pump = news && !writing_;
    if (pump) writing_ = true;
  }
  if (cancel.has_value()) CancelAll(*cancel);
  if (pump) Pump();
}

void StreamCall::StateLeaves(const std::string& id) {
  unknown_states_.erase(std::remove(unknown_states_.begin(), unknown_states_.end(), id),
                        unknown_states_.end());
}

void StreamCall::OnStuck(Duration waited) {
  log::Warning("request.stuck", {{"id", ids_.request},
                                 {"peer", context().peer()},
                                 {"client", client_ != nullptr ? client_->name : ""},
                                 {"method", MethodName(method_)},
                                 {"waited_ms", Milliseconds(waited)},
                                 {"trace_id", ids_.trace.trace_id}});
}

void StreamCall::OnRevoked(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    revoked_ = why;
  }
  OnCancel();
}

void StreamCall::Conclude(Outcome outcome) {
  outcome.status = FinalStatus(outcome);
  const absl::StatusCode code = outcome.status.code();
  bool begun = false;
  std::string failed_text;
  {
    MutexLock lock(mutex_);
    begun = first_ == First::kSent;
    failed_text = failed_text_;
  }
  OperationBegins();
  Report(outcome);
  ForgetKept(code, begun);
  if (code == absl::StatusCode::kOk && sequences_ > 1 && !unary_) return Finish(grpc::Status::OK);
  if (code == absl::StatusCode::kOk) {
    if (unary_) {
      SendIds(context(), ids_, Metadata::kInitial);
      MutexLock lock(mutex_);
      told_all_ = true;
    }
    SetFinished(outcome);
    const absl::Status serialized = Serialize();
    if (!serialized.ok()) return Finish(ToGrpcStatus(serialized, ids_.request));
    StartWriteAndFinish(&outgoing_bytes_, grpc::WriteOptions(), grpc::Status::OK);
    return;
  }
  if (!begun || unary_) SendIds(context(), ids_, Metadata::kTrailing);
  if (!begun) {
    if (code == absl::StatusCode::kResourceExhausted) {
      const EngineLoad load = model_ != nullptr ? model_->engine().load() : EngineLoad();
      context().AddTrailingMetadata(kRetryPushbackKey,
                                    absl::StrCat(environment_.retry_hint.After(load).count()));
    }
  }
  // Asked for again it would be computed again, to the same end.
  if (begun && unary_ && code == absl::StatusCode::kResourceExhausted) {
    context().AddTrailingMetadata(kRetryPushbackKey, "-1");
  }
  if (begun) {
    context().AddTrailingMetadata(kUsageKey, EncodeUsage(outcome.usage).SerializeAsString());
    context().AddTrailingMetadata(kTimingsKey, EncodeTimings(outcome.timings).SerializeAsString());
  }
  const grpc::Status status = ToGrpcStatus(outcome.status, ids_.request);
  Finish(grpc::Status(status.error_code(), failed_text + status.error_message()));
}

absl::Status StreamCall::FinalStatus(const Outcome& outcome) const {
  if (!absl::IsCancelled(outcome.status)) return outcome.status;
  MutexLock lock(mutex_);
  if (!revoked_.ok()) return revoked_;
  if (stuck()) return SlowClient();
  const bool expired = cancelled_ && EndedByDeadline(cancelled_at_, arrival_, deadline_);
  return expired ? absl::DeadlineExceededError(outcome.status.message()) : outcome.status;
}

void StreamCall::Report(const Outcome& outcome) {
  const absl::StatusCode code = outcome.status.code();
  const Duration total = std::chrono::steady_clock::now() - arrival_;
  if (!refused_) {
    CountResumed();
    metrics_->calls.Observe(method_, total);
  }
  (metrics_ != nullptr ? metrics_->calls : environment_.metrics.calls).Count(method_, code);
  if (model_ != nullptr && outcome.status.ok() && !NeedsNoEngine(method_)) {
    environment_.retry_hint.Record(outcome.timings.total - outcome.timings.queue);
  }
  const std::string client = client_ != nullptr ? client_->name : "";
  std::string reason = kFinishReasonNames[static_cast<size_t>(outcome.reason)];
  {
    MutexLock lock(mutex_);
    if (client_ != nullptr) environment_.client_metrics.Count(client, code, computed_tokens_);
    if (!outcome.status.ok()) reason = absl::StrCat(failed_text_, outcome.status.message());
  }
  const bool defect = code == absl::StatusCode::kInternal;
  if (refused_ && !defect && !environment_.LogsRefusal()) return;
  const auto log = defect ? log::Error : log::Info;
  const Phases phases(outcome.timings);
  log("request.done",
      {{"id", ids_.request},
       {"peer", context().peer()},
       {"client", client},
       {"method", MethodName(method_)},
       {"model", model_name_},
       {"code", absl::StatusCodeToString(code)},
       {"reason", reason},
       {"n", sequences_},
       {"prompt_tokens", outcome.usage.prompt_tokens},
       {"generated_tokens", outcome.usage.generated_tokens},
       {"resumed_tokens", outcome.usage.resumed_tokens},
       {"queue_ms", Milliseconds(outcome.timings.queue)},
       {"ttft_ms", Milliseconds(outcome.timings.first_token)},
       {"total_ms", Milliseconds(total)},
       {"cached_tokens", outcome.usage.cached_tokens},
       {"cache_miss", kCacheMissNames[static_cast<size_t>(outcome.usage.cache_miss)]},
       {"diverged_at", outcome.usage.diverged_at},
       {"prefill_ms", Milliseconds(phases.prefill)},
       {"decode_ms", Milliseconds(phases.decode)},
       {"write_ms", Milliseconds(time_writing())},
       {"trace_id", ids_.trace.trace_id},
       {"span_id", ids_.trace.span_id},
       {"parent_id", ids_.trace.parent_id}});
}

}  // namespace aft::server
