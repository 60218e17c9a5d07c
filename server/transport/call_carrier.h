#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/call/call.h"
#include "server/call/carrier.h"
#include "server/call/sender.h"
#include "server/transport/active_calls.h"
#include "server/transport/transport_environment.h"

namespace aft::server {

// The bytes of a request over gRPC.
class GrpcRequestBytes final : public RequestBytes {
 public:
  explicit GrpcRequestBytes(grpc::ByteBuffer bytes) { bytes_.Swap(&bytes); }

  size_t size() const override { return bytes_.Length(); }
  std::vector<std::optional<std::string>> PeekStrings(int last, size_t most) const override;
  size_t FieldBytes(int field) const override;
  absl::Status ParseInto(google::protobuf::Message& message) override;

 private:
  grpc::ByteBuffer bytes_;
};

// Carries one Call over a gRPC call. It identifies the caller, tells the Call when the client is
// gone, does not read or may not call any more, and lets one thread at a time send. ActiveCalls
// owns the carrier from Start to OnDone. After that, its Call keeps it alive for as long as an
// engine has the call. The call is cancelled if an operation takes too long because the client does
// not read (ActiveCall).
class CallCarrier : public ActiveCall, public Carrier, public Sender::Source {
 public:
  void Wake(Call& call) final;
  void WakeLater(Call& call) final;

 protected:
  explicit CallCarrier(grpc::CallbackServerContext& context) : ActiveCall(context) {}

  // Makes the call and starts it. `self` is this object. Takes the bytes out of gRPC's `request`.
  void Start(const std::shared_ptr<CallCarrier>& self, TransportEnvironment& transport,
             InferenceEnvironment& inference, std::unique_ptr<Exchange> exchange,
             const grpc::ByteBuffer& request);

  // SendMessage starts to send what Call::Take has made; SendEnd starts to send the end, with what
  // Serialize has kept. Sent is called when a message is sent, or cannot be sent.
  virtual void SendMessage(Call& call) = 0;
  virtual void SendEnd(Call& call) = 0;
  void Sent();

  // Sends the ids before the first message, or with the status if there is no message.
  void SendIdsOnce(const Call& call, bool with_status);
  // Returns a status that is not OK, and adds its metadata. `unary`: the answer is one message.
  grpc::Status EndWith(const Call& call, bool unary);

  void Cancelled();
  // Does the rest of OnDone; may delete this object.
  void Done();

 private:
  // Takes the right to send. Returns false if a thread has it, which then looks again.
  bool MaySend();
  void Pump(Call& call);
  void Send() final;
  void Fail(const absl::Status& why) final;
  std::shared_ptr<Call> call() const;
  void OnStuck(Duration waited) final;
  void OnRevoked(const absl::Status& why) final;
  void OnClient(const std::shared_ptr<const Client>& client) final;

  ActiveCalls* active_ = nullptr;
  Sender* sender_ = nullptr;
  bool ids_sent_ = false;  // used only by the thread that may send
  mutable Mutex mutex_;
  std::shared_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);  // from Start to Done
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;        // a thread has the right to send
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;          // since the last Take
};

// A method whose answer is a stream.
class StreamCarrier final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public CallCarrier {
 public:
  // Returns the reactor for gRPC.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(TransportEnvironment& transport,
                                                           InferenceEnvironment& inference,
                                                           std::unique_ptr<Exchange> exchange,
                                                           grpc::CallbackServerContext& context,
                                                           const grpc::ByteBuffer& request);

  explicit StreamCarrier(grpc::CallbackServerContext& context) : CallCarrier(context) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }

 private:
  absl::Status Serialize(const google::protobuf::MessageLite& message) override;
  void SendMessage(Call& call) override;
  void SendEnd(Call& call) override;

  grpc::ByteBuffer outgoing_;  // used only by the thread that may send
};

// A method whose answer is one message.
class UnaryCarrier final : public grpc::ServerUnaryReactor, public CallCarrier {
 public:
  // Returns the reactor for gRPC. `response` is gRPC's.
  static grpc::ServerUnaryReactor* Start(TransportEnvironment& transport,
                                         InferenceEnvironment& inference,
                                         std::unique_ptr<Exchange> exchange,
                                         grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer& response);

  UnaryCarrier(grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : CallCarrier(context), response_(response) {}

  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }

 private:
  absl::Status Serialize(const google::protobuf::MessageLite& message) override;
  void SendMessage(Call& /*call*/) override {}  // the only message is sent by SendEnd
  void SendEnd(Call& call) override;

  grpc::ByteBuffer& response_;
};

}  // namespace aft::server
