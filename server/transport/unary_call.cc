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
  if (!fits.ok()) NeverRetry();
  AFT_RETURN_IF_ERROR(fits);
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<const Client> client, Identify(environment_.identity));
  return ChargeTo(std::move(client));
}

absl::Status UnaryCall::ChargeTo(std::shared_ptr<const Client> client) {
  client_ = std::move(client);
  charge_ = MemoryLedger::Charge(environment_.ledger, *client_);
  return Hold(request_.Length(), "the request");
}

absl::Status UnaryCall::Hold(size_t bytes, absl::string_view what) {
  const auto held = static_cast<int64_t>(kCallBytes + bytes);
  if (charge_.Resize(held)) return absl::OkStatus();
  return environment_.RefuseForMemory({kCallBytes + bytes, charge_.MayEverHold(held)}, what);
}

absl::Status UnaryCall::Answer(const google::protobuf::MessageLite& message) {
  AFT_RETURN_IF_ERROR(SerializeMessage(message, response_));
  DropRequest();
  absl::Status held = Hold(response_.Length(), "the answer");
  if (!held.ok()) response_.Clear();
  return held;
}

bool UnaryCall::Wait(Ending end) {
  absl::Status revoked;
  {
    MutexLock lock(mutex_);
    revoked = revoked_;
    if (revoked.ok()) {
      end_ = std::move(end);
      return true;
    }
  }
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
    context().AddTrailingMetadata(kRetryPushbackKey, never_retry_ ? kNeverRetry : kRetryAfterMs);
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
