#include "server/transport/unary_call.h"

#include <chrono>
#include <utility>

#include "base/status_macros.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {

std::shared_ptr<UnaryCall> UnaryCall::Start(const TransportEnvironment& environment,
                                            const char* method,
                                            grpc::CallbackServerContext& context,
                                            const grpc::ByteBuffer& request,
                                            grpc::ByteBuffer& response) {
  auto call = std::make_shared<UnaryCall>(environment, method, context, request, response);
  environment.active.Add(call);
  return call;
}

UnaryCall::UnaryCall(const TransportEnvironment& environment, const char* method,
                     grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
                     grpc::ByteBuffer& response)
    : ActiveCall(context),
      environment_(environment),
      method_(method),
      arrival_(std::chrono::steady_clock::now()),
      ids_status_(TakeIds(context, ids_)),
      request_(request),
      response_(response) {}

absl::Status UnaryCall::Admit() {
  const absl::Status fits = environment_.CheckMessage(request_.Length());
  too_large_ = !fits.ok();
  AFT_RETURN_IF_ERROR(fits);
  AFT_ASSIGN_OR_RETURN(client_, Identify(environment_.identity));
  charge_ = MemoryLedger::Charge(environment_.ledger, *client_);
  if (charge_.Resize(static_cast<int64_t>(kCallBytes + request_.Length()))) {
    return absl::OkStatus();
  }
  return environment_.RefuseForMemory();
}

absl::Status UnaryCall::Answer(const google::protobuf::MessageLite& message) {
  AFT_RETURN_IF_ERROR(SerializeMessage(message, response_));
  DropRequest();
  if (charge_.Resize(static_cast<int64_t>(kCallBytes + response_.Length()))) {
    return absl::OkStatus();
  }
  response_.Clear();
  return environment_.RefuseForMemory();
}

bool UnaryCall::Wait(Ending end) {
  absl::Status revoked;
  {
    MutexLock lock(mutex_);
    revoked = revoked_;
    if (revoked.ok()) end_ = std::move(end);
  }
  if (revoked.ok()) return true;
  end(revoked);
  return false;
}

UnaryCall::Ending UnaryCall::TakeEnd() {
  MutexLock lock(mutex_);
  return std::exchange(end_, nullptr);
}

bool UnaryCall::waiting() const {
  MutexLock lock(mutex_);
  return end_ != nullptr;
}

void UnaryCall::OnRevoked(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    revoked_ = why;
  }
  if (const Ending end = TakeEnd()) end(why);
}

void UnaryCall::End(Method method, const absl::Status& status) {
  environment_.Report(method, arrival_, status.code());
  SendTrace(context(), ids_.trace, status.ok() ? Metadata::kInitial : Metadata::kTrailing);
  Close(ToGrpcStatus(status));
}

void UnaryCall::Close(const grpc::Status& status) {
  DropRequest();
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    context().AddTrailingMetadata(kRetryPushbackKey, too_large_ ? kNeverRetry : kRetryAfterMs);
  }
  OperationBegins();
  Finish(status);
}

void UnaryCall::DropRequest() { TakeRequest(request_); }

void UnaryCall::OnDone() {
  ContextGoes();
  charge_.Close();
  environment_.active.Remove(this);  // may delete this
}

void UnaryCall::OnStuck(Duration waited) {
  log::Warning("request.stuck", {{"id", ids_.request},
                                 {"peer", context().peer()},
                                 {"client", client_ != nullptr ? client_->name : ""},
                                 {"method", method_},
                                 {"waited_ms", 1000 * Seconds(waited)},
                                 {"trace_id", ids_.trace.trace_id}});
}

}  // namespace aft::server
