#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
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

  // Identifies the caller, and charges it for the request. UNAUTHENTICATED; RESOURCE_EXHAUSTED;
  // INVALID_ARGUMENT if the request needs more memory than a client may ever hold. A call that
  // needs no client, and that answers even if memory is full, leaves this out.
  absl::Status Admit();
  // Charges `client` for the request of a call that needs no identity. Errors as Admit, but not
  // UNAUTHENTICATED. REQUIRES: the size of the request was checked.
  absl::Status ChargeTo(std::shared_ptr<const Client> client);
  const CallIds& ids() const { return ids_; }
  // INVALID_ARGUMENT if the client's `x-request-id` is not valid. The call then has a new id.
  const absl::Status& ids_status() const { return ids_status_; }
  // Null unless Admit has found the client, or ChargeTo was called.
  const std::shared_ptr<const Client>& client() const { return client_; }

  // Makes `message` the answer, and frees the request. RESOURCE_EXHAUSTED if there is no room for
  // it; INVALID_ARGUMENT if there can never be.
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

  // If the call ends for lack of space, its client must not repeat it by itself. Any thread may
  // call it before the end.
  void NeverRetry() { never_retry_ = true; }

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
  // Charges for `bytes` in addition to the call itself; `what` has them. Errors as Admit.
  absl::Status Hold(size_t bytes, absl::string_view what);
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
  std::atomic<bool> never_retry_{false};
  mutable Mutex mutex_;
  Ending end_ ABSL_GUARDED_BY(mutex_);
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);  // the reason, once revoked
};

}  // namespace aft::server
