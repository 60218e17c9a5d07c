#include "server/rpc/generate_call.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "server/observability/log.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/generate_codec.h"

namespace aft::server {
namespace {

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

absl::Status Parse(const grpc::ByteBuffer& bytes, v1::GenerateRequest& message) {
  grpc::ByteBuffer copy(bytes);  // shares the slices; Deserialize empties it
  if (grpc::SerializationTraits<v1::GenerateRequest>::Deserialize(&copy, &message).ok()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "request: is no aft.v1.GenerateRequest; model, text and stop.strings must be valid UTF-8");
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateCall::Start(
    GenerateEnvironment& environment, grpc::CallbackServerContext& context,
    const grpc::ByteBuffer& message) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(environment, context));
  call->self_ = call;
  absl::Status status;
  try {
    status = call->Submit(message);
  } catch (const std::exception& error) {  // out of memory for a prompt, at worst
    status = absl::InternalError(error.what());
  }
  if (!status.ok()) {
    Outcome refusal;
    refusal.status = std::move(status);
    refusal.timings.total = std::chrono::steady_clock::now() - call->arrival_;
    call->Conclude(refusal);
  } else {
    call->StartWrite(call->Outgoing());
  }
  return call.get();  // self_ keeps it
}

GenerateCall::GenerateCall(GenerateEnvironment& environment, grpc::CallbackServerContext& context)
    : environment_(environment),
      context_(context),
      arrival_(std::chrono::steady_clock::now()),
      deadline_(DeadlineOf(context)) {
  environment_.active.Add();
}

absl::Status GenerateCall::Submit(const grpc::ByteBuffer& bytes) {
  absl::StatusOr<std::string> id = TakeRequestId(context_);
  id_ = id.ok() ? *id : NewRequestId();
  context_.AddInitialMetadata(kRequestIdKey, id_);
  AFT_RETURN_IF_ERROR(id.status());

  v1::GenerateRequest message;
  AFT_RETURN_IF_ERROR(Parse(bytes, message));
  model_name_ = message.model();
  with_logprobs_ = message.output().has_top_logprobs();
  metrics_ = environment_.registry.FindMetrics(model_name_);
  AFT_ASSIGN_OR_RETURN(model_, environment_.registry.Acquire(model_name_));

  Engine& engine = *model_->engine;
  absl::StatusOr<GenerationRequest> request =
      DecodeGenerateRequest(message, environment_.limits, *model_->tokenizer,
                            engine.model_info().vocab_size, RandomUint64());
  if (!request.ok()) {
    metrics_->rejected(Rejection::kInvalid).Increment();
    return request.status();
  }
  request->id = id_;
  request->arrival = arrival_;
  request->deadline = deadline_;
  v1::Started* started = outgoing_.mutable_started();
  started->set_model(model_->name);
  started->set_model_version(model_->version);
  started->set_seed(request->sampling.seed);
  started->set_prompt_tokens(static_cast<uint32_t>(request->prompt.size()));

  absl::StatusOr<Engine::Handle> handle = engine.Submit(*std::move(request), shared_from_this());
  if (absl::IsResourceExhausted(handle.status())) {
    context_.AddTrailingMetadata(
        kRetryAfterKey, absl::StrCat(environment_.retry_hint.After(engine.load()).count()));
  }
  AFT_RETURN_IF_ERROR(handle.status());
  MutexLock lock(mutex_);
  handle_ = *handle;
  return absl::OkStatus();
}

const grpc::ByteBuffer* GenerateCall::Outgoing() {
  outgoing_bytes_.Clear();
  bool own_buffer = true;
  const grpc::Status status = grpc::SerializationTraits<v1::GenerateResponse>::Serialize(
      outgoing_, &outgoing_bytes_, &own_buffer);
  AFT_CHECK(status.ok());  // fails only above 2 GiB, and max_stream_buffer_bytes is below
  return &outgoing_bytes_;
}

bool GenerateCall::OnDelta(TokenDelta delta) {
  {
    MutexLock lock(mutex_);
    if (cancelled_) return true;  // the engine has been told
    if (pending_bytes_ > static_cast<size_t>(environment_.limits.max_stream_buffer_bytes)) {
      pending_.Clear();
      pending_bytes_ = 0;
      return false;
    }
    pending_bytes_ += AppendDelta(delta, with_logprobs_, *pending_.mutable_delta());
    if (writing_) return true;
    writing_ = true;
  }
  Pump();
  return true;
}

void GenerateCall::OnFinished(const Outcome& outcome) {
  {
    MutexLock lock(mutex_);
    outcome_ = outcome;
    if (writing_) return;
    writing_ = true;
  }
  Pump();
}

void GenerateCall::OnWriteDone(bool ok) {
  if (!ok) OnCancel();  // the stream is broken
  Pump();
}

void GenerateCall::OnCancel() {
  std::optional<Engine::Handle> handle;
  {
    MutexLock lock(mutex_);
    if (!cancelled_) cancelled_at_ = std::chrono::steady_clock::now();
    cancelled_ = true;
    pending_.Clear();
    pending_bytes_ = 0;
    handle = handle_;
  }
  // The slot is freed now, and not when gRPC is done with the stream: a blocked connection can
  // delay OnWriteDone and OnDone for minutes.
  if (handle.has_value()) model_->engine->Cancel(*handle);
}

void GenerateCall::OnDone() {
  environment_.active.Remove();
  const std::shared_ptr<GenerateCall> last = std::move(self_);  // may delete this on return
}

void GenerateCall::Pump() {
  std::optional<Outcome> outcome;
  {
    MutexLock lock(mutex_);
    if (pending_.has_delta()) {
      outgoing_.Swap(&pending_);
      pending_.Clear();
      pending_bytes_ = 0;
    } else if (outcome_.has_value()) {
      outcome = outcome_;
    } else {
      writing_ = false;
      return;
    }
  }
  if (outcome.has_value()) {
    Conclude(*outcome);
  } else {
    StartWrite(Outgoing());
  }
}

void GenerateCall::Conclude(const Outcome& outcome) {
  const absl::StatusCode code = FinalCode(outcome);
  Report(outcome, code);
  if (code == absl::StatusCode::kOk) {
    *outgoing_.mutable_finished() = EncodeFinished(outcome);
    StartWriteAndFinish(Outgoing(), grpc::WriteOptions(), grpc::Status::OK);
    return;
  }
  if (outcome.usage.prompt_tokens > 0) {  // it had begun
    context_.AddTrailingMetadata(kUsageKey, EncodeUsage(outcome.usage).SerializeAsString());
    context_.AddTrailingMetadata(kTimingsKey, EncodeTimings(outcome.timings).SerializeAsString());
  }
  Finish(ToGrpcStatus(absl::Status(code, outcome.status.message()), id_));
}

absl::StatusCode GenerateCall::FinalCode(const Outcome& outcome) const {
  if (!absl::IsCancelled(outcome.status)) return outcome.status.code();
  MutexLock lock(mutex_);
  // A client whose deadline passes cancels the stream a moment before the server's own clock gets
  // there: the deadline came rounded up (by 1 % or a millisecond) and after the way here.
  if (deadline_ == TimePoint::max()) return outcome.status.code();
  const Duration slack =
      std::max<Duration>(std::chrono::milliseconds(10), (deadline_ - arrival_) / 50);
  const bool expired = cancelled_ && cancelled_at_ + slack >= deadline_;
  return expired ? absl::StatusCode::kDeadlineExceeded : outcome.status.code();
}

void GenerateCall::Report(const Outcome& outcome, absl::StatusCode code) {
  (metrics_ != nullptr ? metrics_->requests : environment_.metrics.requests_without_model)
      .Increment(code);
  if (model_ != nullptr && outcome.status.ok()) {
    environment_.retry_hint.Record(outcome.timings.total - outcome.timings.queue);
  }
  const auto log = code == absl::StatusCode::kInternal ? log::Error : log::Info;
  log("request.done", {{"id", id_},
                       {"peer", context_.peer()},
                       {"model", model_ != nullptr ? model_->name : model_name_},
                       {"code", absl::StatusCodeToString(code)},
                       {"reason", outcome.status.ok() ? FinishReasonName(outcome.reason)
                                                      : outcome.status.message()},
                       {"prompt_tokens", outcome.usage.prompt_tokens},
                       {"generated_tokens", outcome.usage.generated_tokens},
                       {"queue_ms", Milliseconds(outcome.timings.queue)},
                       {"ttft_ms", Milliseconds(outcome.timings.first_token)},
                       {"total_ms", Milliseconds(outcome.timings.total)}});
}

}  // namespace aft::server
