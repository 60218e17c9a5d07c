#include "server/rpc/stream_call.h"

#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/observability/log.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/text_codec.h"

namespace aft::server {
namespace {

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

CallReactor* StreamCall::Start(const std::shared_ptr<StreamCall>& call,
                               const grpc::ByteBuffer& message) {
  call->self_ = call;
  absl::Status status;
  try {
    status = call->Submit(message);
  } catch (const std::exception& error) {  // out of memory for a text, at worst
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

StreamCall::StreamCall(Method method, CallEnvironment& environment,
                       grpc::CallbackServerContext& context)
    : method_(method),
      environment_(environment),
      context_(context),
      arrival_(std::chrono::steady_clock::now()),
      deadline_(DeadlineOf(context)) {
  environment_.active.Add();
}

absl::Status StreamCall::Open(const grpc::ByteBuffer& bytes,
                              google::protobuf::MessageLite& message) {
  absl::StatusOr<std::string> id = TakeRequestId(context_);
  id_ = id.ok() ? *id : NewRequestId();
  context_.AddInitialMetadata(kRequestIdKey, id_);
  AFT_RETURN_IF_ERROR(id.status());
  return ParseMessage(bytes, message);
}

absl::Status StreamCall::FindModel(const std::string& name) {
  model_name_ = name;
  metrics_ = environment_.registry.FindMetrics(name);
  AFT_ASSIGN_OR_RETURN(model_, environment_.registry.Acquire(name));
  model_name_ = model_->config.name;
  return absl::OkStatus();
}

absl::Status StreamCall::WrongTask() {
  const char* const task = model_->encode != nullptr ? "an encoder: it serves Encode"
                                                     : "a language model: it serves Generate and "
                                                       "Score";
  return Invalid(absl::FailedPreconditionError(absl::StrCat(
      "model \"", model_->config.name, "\" is ", task, ", not ", MethodName(method_))));
}

absl::Status StreamCall::Invalid(absl::Status status) {
  metrics_->rejected(Rejection::kInvalid).Increment();
  return status;
}

void StreamCall::FillHeader(RequestHeader& header) const {
  header.id = id_;
  header.arrival = arrival_;
  header.deadline = deadline_;
}

absl::Status StreamCall::Accepted(const absl::StatusOr<RequestHandle>& handle) {
  if (absl::IsResourceExhausted(handle.status())) {
    const auto wait = environment_.retry_hint.After(model_->engine().load());
    context_.AddTrailingMetadata(kRetryAfterKey, absl::StrCat(wait.count()));
  }
  AFT_RETURN_IF_ERROR(handle.status());
  MutexLock lock(mutex_);
  handle_ = *handle;
  return absl::OkStatus();
}

const grpc::ByteBuffer* StreamCall::Outgoing() {
  SerializeMessage(outgoing(), outgoing_bytes_);
  return &outgoing_bytes_;
}

bool StreamCall::Offer(absl::FunctionRef<size_t()> append) {
  {
    MutexLock lock(mutex_);
    if (cancelled_) return true;  // the engine has been told
    if (pending_bytes_ > static_cast<size_t>(environment_.limits.max_stream_buffer_bytes)) {
      DropPending();
      pending_bytes_ = 0;
      return false;
    }
    pending_bytes_ += append();
    if (writing_) return true;
    writing_ = true;
  }
  Pump();
  return true;
}

void StreamCall::End(const Outcome& outcome) {
  {
    MutexLock lock(mutex_);
    outcome_ = outcome;
    if (writing_) return;
    writing_ = true;
  }
  Pump();
}

void StreamCall::OnWriteDone(bool ok) {
  if (!ok) OnCancel();  // the stream is broken
  Pump();
}

void StreamCall::OnCancel() {
  std::optional<RequestHandle> handle;
  {
    MutexLock lock(mutex_);
    if (!cancelled_) cancelled_at_ = std::chrono::steady_clock::now();
    cancelled_ = true;
    DropPending();
    pending_bytes_ = 0;
    handle = handle_;
  }
  // The slot is freed now, and not when gRPC is done with the stream: a blocked connection can
  // delay OnWriteDone and OnDone for minutes.
  if (handle.has_value()) model_->engine().Cancel(*handle);
}

void StreamCall::OnDone() {
  environment_.active.Remove();
  const std::shared_ptr<StreamCall> last = std::move(self_);  // may delete this on return
}

void StreamCall::Pump() {
  std::optional<Outcome> outcome;
  {
    MutexLock lock(mutex_);
    if (TakePending()) {
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

void StreamCall::Conclude(const Outcome& outcome) {
  const absl::StatusCode code = FinalCode(outcome);
  Report(outcome, code);
  if (code == absl::StatusCode::kOk) {
    SetFinished(outcome);
    StartWriteAndFinish(Outgoing(), grpc::WriteOptions(), grpc::Status::OK);
    return;
  }
  if (outcome.usage.prompt_tokens > 0) {  // it had begun
    context_.AddTrailingMetadata(kUsageKey, EncodeUsage(outcome.usage).SerializeAsString());
    context_.AddTrailingMetadata(kTimingsKey, EncodeTimings(outcome.timings).SerializeAsString());
  }
  Finish(ToGrpcStatus(absl::Status(code, outcome.status.message()), id_));
}

absl::StatusCode StreamCall::FinalCode(const Outcome& outcome) const {
  if (!absl::IsCancelled(outcome.status)) return outcome.status.code();
  MutexLock lock(mutex_);
  const bool expired = cancelled_ && EndedByDeadline(cancelled_at_, arrival_, deadline_);
  return expired ? absl::StatusCode::kDeadlineExceeded : outcome.status.code();
}

void StreamCall::Report(const Outcome& outcome, absl::StatusCode code) {
  (metrics_ != nullptr ? metrics_->requests : environment_.metrics.requests_without_model)
      .Increment(method_, code);
  if (model_ != nullptr && outcome.status.ok()) {
    environment_.retry_hint.Record(outcome.timings.total - outcome.timings.queue);
  }
  const auto log = code == absl::StatusCode::kInternal ? log::Error : log::Info;
  const absl::string_view reason = kFinishReasonNames[static_cast<size_t>(outcome.reason)];
  log("request.done", {{"id", id_},
                       {"peer", context_.peer()},
                       {"method", MethodName(method_)},
                       {"model", model_name_},
                       {"code", absl::StatusCodeToString(code)},
                       {"reason", outcome.status.ok() ? reason : outcome.status.message()},
                       {"prompt_tokens", outcome.usage.prompt_tokens},
                       {"generated_tokens", outcome.usage.generated_tokens},
                       {"queue_ms", Milliseconds(outcome.timings.queue)},
                       {"ttft_ms", Milliseconds(outcome.timings.first_token)},
                       {"total_ms", Milliseconds(outcome.timings.total)}});
}

}  // namespace aft::server
