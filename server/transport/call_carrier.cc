#include "server/transport/call_carrier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "server/call/call_report.h"
#include "server/call/outcome_messages.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {

std::vector<std::optional<std::string>> GrpcRequestBytes::PeekStrings(int last, size_t most) const {
  return server::PeekStrings(bytes_, last, most);
}

size_t GrpcRequestBytes::FieldBytes(int field) const { return server::FieldBytes(bytes_, field); }

absl::Status GrpcRequestBytes::ParseInto(google::protobuf::Message& message) {
  absl::Status status = ParseMessage(bytes_, message);
  bytes_.Clear();
  return status;
}

// ---- Both carriers ------------------------------------------------------------------------------

void CallCarrier::Start(const std::shared_ptr<CallCarrier>& self, TransportEnvironment& transport,
                        InferenceEnvironment& inference, std::unique_ptr<Exchange> exchange,
                        const grpc::ByteBuffer& request) {
  const auto call = std::make_shared<Call>(inference, std::move(exchange), self);
  {
    MutexLock lock(mutex_);
    call_ = call;
  }
  active_ = &transport.active;
  sender_ = &transport.sender;
  active_->Add(self);
  Caller caller;
  caller.peer = context().peer();
  caller.deadline = DeadlineOf(context());
  absl::Status status = TakeIds(context(), caller.ids);
  if (status.ok()) {
    auto client = Identify(transport.identity);
    status = client.status();
    if (client.ok()) caller.client = *std::move(client);
  }
  if (status.ok()) {
    auto salt = transport.identity.CacheSaltOf(FactsOf(context()));
    status = salt.status();
    if (salt.ok()) caller.cache_salt = *std::move(salt);
  }
  call->Start(std::move(caller), std::move(status),
              std::make_unique<GrpcRequestBytes>(TakeRequest(request)));
}

void CallCarrier::Wake(Call& call) {
  if (MaySend()) Pump(call);
}

void CallCarrier::WakeLater(Call& call) {
  // The call keeps this object alive.
  if (MaySend()) sender_->Post(std::shared_ptr<Sender::Source>(call.shared_from_this(), this));
}

bool CallCarrier::MaySend() {
  MutexLock lock(mutex_);
  woken_ = true;
  return !std::exchange(sending_, true);
}

void CallCarrier::Send() { Pump(*call()); }

void CallCarrier::Fail(const absl::Status& why) {
  call()->Cancel(why);
  TryCancel();
}

void CallCarrier::Pump(Call& call) {
  while (true) {
    {
      MutexLock lock(mutex_);
      woken_ = false;
    }
    switch (call.Take()) {
      case Call::Next::kMessage:
        return SendMessage(call);
      case Call::Next::kEnd:  // keeps the right to send
        return SendEnd(call);
      case Call::Next::kNothing:
        break;
    }
    MutexLock lock(mutex_);
    if (woken_) continue;
    sending_ = false;
    return;
  }
}

void CallCarrier::Sent() {
  OperationEnds();
  const std::shared_ptr<Call> call = this->call();
  call->Written();
  Pump(*call);
}

void CallCarrier::SendIdsOnce(const Call& call, bool with_status) {
  if (std::exchange(ids_sent_, true)) return;
  SendIds(context(), call.caller().ids, with_status ? Metadata::kTrailing : Metadata::kInitial);
}

grpc::Status CallCarrier::EndWith(const Call& call, bool unary) {
  const CallEnd& ending = call.ending();
  SendIdsOnce(call, /*with_status=*/true);
  if (ending.retry_after.has_value()) {
    context().AddTrailingMetadata(kRetryPushbackKey, absl::StrCat(ending.retry_after->count()));
  } else if (unary && absl::IsResourceExhausted(ending.status)) {
    // An answer that is too large would be too large again, so clients must not retry. Memory may
    // be free later.
    context().AddTrailingMetadata(kRetryPushbackKey,
                                  IsNoMemory(ending.status) ? kRetryAfterMs : kNeverRetry);
  }
  if (ending.begun) {
    context().AddTrailingMetadata(kUsageKey, EncodeUsage(ending.usage).SerializeAsString());
    context().AddTrailingMetadata(kTimingsKey, EncodeTimings(ending.timings).SerializeAsString());
  }
  const grpc::Status status = ToGrpcStatus(ending.status, call.caller().ids.request);
  if (ending.path.empty()) return status;
  return grpc::Status(status.error_code(), absl::StrCat(ending.path, ": ", status.error_message()));
}

void CallCarrier::Cancelled() {
  if (const std::shared_ptr<Call> call = this->call()) {
    call->Cancel(stuck() ? SlowClient() : absl::CancelledError("the client cancelled the request"));
  }
}

void CallCarrier::Done() {
  ContextGoes();
  std::shared_ptr<Call> call;  // the call holds this object
  {
    MutexLock lock(mutex_);
    call.swap(call_);
  }
  call->Close();
  active_->Remove(this);  // may delete this, with `call`
}

std::shared_ptr<Call> CallCarrier::call() const {
  MutexLock lock(mutex_);
  return call_;
}

void CallCarrier::OnStuck(Duration waited) {
  if (const std::shared_ptr<Call> call = this->call()) {
    LogStuck(call->caller(), call->exchange().method(), waited);
  }
}

void CallCarrier::OnRevoked(const absl::Status& why) {
  if (const std::shared_ptr<Call> call = this->call()) call->Cancel(why);
}

void CallCarrier::OnClient(const std::shared_ptr<const Client>& client) {
  if (const std::shared_ptr<Call> call = this->call()) call->OnClient(client);
}

// ---- A stream -----------------------------------------------------------------------------------

grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamCarrier::Start(
    TransportEnvironment& transport, InferenceEnvironment& inference,
    std::unique_ptr<Exchange> exchange, grpc::CallbackServerContext& context,
    const grpc::ByteBuffer& request) {
  const auto carrier = std::make_shared<StreamCarrier>(context);
  carrier->CallCarrier::Start(carrier, transport, inference, std::move(exchange), request);
  return carrier.get();
}

void StreamCarrier::OnWriteDone(bool ok) {
  if (!ok) Cancelled();  // the stream is broken
  Sent();
}

absl::Status StreamCarrier::Serialize(const google::protobuf::MessageLite& message) {
  return SerializeMessage(message, outgoing_);
}

void StreamCarrier::SendMessage(Call& call) {
  const absl::Status serialized = Serialize(call.exchange().outgoing());
  if (!serialized.ok()) {
    // gRPC ends the process if it gets a message without bytes. The call ends with the error.
    call.Cancel(serialized);
    return Sent();
  }
  SendIdsOnce(call, /*with_status=*/false);
  OperationBegins();
  StartWrite(&outgoing_);
}

void StreamCarrier::SendEnd(Call& call) {
  const CallEnd& ending = call.ending();
  OperationBegins();
  if (!ending.status.ok()) return Finish(EndWith(call, /*unary=*/false));
  if (!ending.message) return Finish(grpc::Status::OK);
  SendIdsOnce(call, /*with_status=*/false);
  StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
}

// ---- One message --------------------------------------------------------------------------------

grpc::ServerUnaryReactor* UnaryCarrier::Start(TransportEnvironment& transport,
                                              InferenceEnvironment& inference,
                                              std::unique_ptr<Exchange> exchange,
                                              grpc::CallbackServerContext& context,
                                              const grpc::ByteBuffer& request,
                                              grpc::ByteBuffer& response) {
  const auto carrier = std::make_shared<UnaryCarrier>(context, response);
  carrier->CallCarrier::Start(carrier, transport, inference, std::move(exchange), request);
  return carrier.get();
}

absl::Status UnaryCarrier::Serialize(const google::protobuf::MessageLite& message) {
  return SerializeMessage(message, response_);
}

void UnaryCarrier::SendEnd(Call& call) {
  OperationBegins();
  if (!call.ending().status.ok()) return Finish(EndWith(call, /*unary=*/true));
  SendIdsOnce(call, /*with_status=*/false);
  Finish(grpc::Status::OK);
}

}  // namespace aft::server
