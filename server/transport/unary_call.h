#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/call/call_ids.h"
#include "server/transport/transport_environment.h"

namespace aft::server {

// The gRPC reactor of a call with one request and one answer, without an engine. gRPC keeps an
// answer that the client does not read. The answer is therefore charged to the client until gRPC
// has sent it and the call is over. If sending takes too long, the call is cancelled (ActiveCall).
// ActiveCalls owns the call until it is over. Thread-compatible, except where a function says that
// any thread may call it. The service uses the call from Start until the call ends.
class UnaryCall final : public grpc::ServerUnaryReactor, public ActiveCall {
 public:
  // `method` names the call in the log, and must live forever. gRPC owns the messages.
  static std::shared_ptr<UnaryCall> Start(const TransportEnvironment& environment,
                                          const char* method, grpc::CallbackServerContext& context,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer& response);

  // Identifies the caller, and charges for the request. UNAUTHENTICATED; RESOURCE_EXHAUSTED. The
  // methods of the health service skip this: they need no client, and answer even if memory is
  // full.
  absl::Status Admit();
  const CallIds& ids() const { return ids_; }
  // INVALID_ARGUMENT if the client's `x-request-id` is not valid. The call then has a new id.
  const absl::Status& ids_status() const { return ids_status_; }
  // Null unless Admit has found the client.
  const std::shared_ptr<const Client>& client() const { return client_; }

  // Makes `message` the answer, and frees the request. RESOURCE_EXHAUSTED if there is no room for
  // it.
  absl::Status Answer(const google::protobuf::MessageLite& message);

  // For a call whose answer comes later: keeps the function that is to end it. If the client may
  // not make the call any more before TakeEnd, `end` is called with the reason. Returns false if
  // that has already happened.
  using Ending = std::function<void(const absl::Status&)>;
  bool Wait(Ending end);
  // Returns the function that was kept, for the thread that has the answer. Null if the call has
  // ended. Any thread may call it.
  Ending TakeEnd();
  // Whether the call still waits for an answer. Any thread may call it.
  bool waiting() const;

  // Exactly one of these ends the call, with a retry hint if it is refused for lack of space. End
  // also reports the call and sends its trace.
  void End(Method method, const absl::Status& status);
  void Close(const grpc::Status& status);

  void OnDone() override;

  TimePoint arrival() const { return arrival_; }
  using ActiveCall::context;
  using ActiveCall::Require;

  // Only Start calls this.
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
  CallIds ids_;
  const absl::Status ids_status_;
  const grpc::ByteBuffer& request_;
  grpc::ByteBuffer& response_;
  std::shared_ptr<const Client> client_;
  MemoryLedger::Charge charge_;
  bool too_large_ = false;  // the request
  mutable Mutex mutex_;
  Ending end_ ABSL_GUARDED_BY(mutex_);
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);  // the reason, once revoked
};

}  // namespace aft::server
