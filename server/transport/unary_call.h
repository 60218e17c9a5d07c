#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/transport/transport_environment.h"

namespace aft::server {

// A call with one request and one answer that needs no engine: gRPC's reactor. gRPC keeps an answer
// that the client does not read, so it is charged to the client until gRPC has sent it, and then
// the call is over; one that gets nowhere is cancelled (ActiveCall). ActiveCalls owns the call
// until it is over. Thread-compatible but for TakeEnd: the service's, from Start until the call
// ends.
class UnaryCall final : public grpc::ServerUnaryReactor, public ActiveCall {
 public:
  // `method` names the call in the log, and lives for ever; the messages are gRPC's.
  static std::shared_ptr<UnaryCall> Start(const TransportEnvironment& environment,
                                          const char* method, grpc::CallbackServerContext& context,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer& response);

  // Finds out who calls, and takes room for the request. UNAUTHENTICATED; RESOURCE_EXHAUSTED. Not
  // of health's methods, which ask nobody and answer however full the memory is.
  absl::Status Admit();
  // Null unless Admit has found one.
  const std::shared_ptr<const Client>& client() const { return client_; }

  // Makes `message` the answer, and frees the request. RESOURCE_EXHAUSTED: there is no room for it.
  absl::Status Answer(const google::protobuf::MessageLite& message);

  // For a call whose answer comes later: keeps what is to end it. Where its client may not make the
  // call any more before somebody takes that, it is called with why; false: it was, already.
  using Ending = std::function<void(const absl::Status&)>;
  bool Wait(Ending end);
  // What was kept, for who has the answer. Null: the call has ended. Any thread may call it.
  Ending TakeEnd();
  // Whether somebody still waits for the answer. Any thread may call it.
  bool waiting() const;

  // Exactly one of these ends the call. The first one reports it and sends its trace.
  void End(Method method, const absl::Status& status);
  void Close(const grpc::Status& status);

  void OnDone() override;

  TimePoint arrival() const { return arrival_; }
  using ActiveCall::context;
  using ActiveCall::Require;

  // For Start.
  UnaryCall(const TransportEnvironment& environment, const char* method,
            grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
            grpc::ByteBuffer& response);

 private:
  void DropRequest();
  void OnStuck(Duration waited) override;
  void OnRevoked(const absl::Status& why) override;

  const TransportEnvironment& environment_;
  const char* const method_;
  const TimePoint arrival_;
  const grpc::ByteBuffer& request_;
  grpc::ByteBuffer& response_;
  std::shared_ptr<const Client> client_;
  MemoryLedger::Charge charge_;
  mutable Mutex mutex_;
  Ending end_ ABSL_GUARDED_BY(mutex_);
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);  // why, once the client may not call any more
};

}  // namespace aft::server
