#include "server/api/oip/unary_infer.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "server/call/call_ids.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server::kserve {
namespace {

class UnaryInfer final : public grpc::ServerUnaryReactor,
                         public ActiveCall,
                         public Carrier,
                         public std::enable_shared_from_this<UnaryInfer> {
 public:
  UnaryInfer(InferEnvironment& environment, grpc::CallbackServerContext& context,
             grpc::ByteBuffer& response)
      : ActiveCall(context), environment_(environment), response_(response) {}

  void Start(const grpc::ByteBuffer& request) {
    absl::Status status = TakeIds(context(), ids_);
    auto client = Identify(environment_.identity);
    if (status.ok()) status = client.status();
    if (!status.ok()) {
      environment_.metrics.calls.Count(Method::kModelInfer, status.code());
      return End(status);
    }
    const auto call = std::make_shared<InferCall>(Method::kModelInfer, environment_,
                                                  Caller{.ids = ids_,
                                                         .peer = context().peer(),
                                                         .client = *std::move(client),
                                                         .deadline = DeadlineOf(context())},
                                                  shared_from_this());
    grpc::ByteBuffer message(request);
    // gRPC would keep it as long as the call; it is not constant, only passed so.
    const_cast<grpc::ByteBuffer&>(request).Clear();
    {
      MutexLock lock(mutex_);
      call_ = call;
      if (!cancelled_.ok()) call->Cancel(cancelled_);
      if (client_ != nullptr) call->OnClient(client_);
    }
    call->Start(std::move(message));
  }

  void OnCancel() override {
    Cancel(stuck() ? SlowClient() : absl::CancelledError("the client cancelled the request"));
  }
  void OnDone() override {
    ContextGoes();
    std::shared_ptr<InferCall> call;  // which holds this
    {
      MutexLock lock(mutex_);
      call.swap(call_);
    }
    environment_.active.Remove(this);  // may delete this, with `call`
  }

 private:
  absl::Status SendToken(std::shared_ptr<InferCall> /*call*/, TokenDelta /*delta*/) override {
    return absl::InternalError("ModelInfer does not stream");
  }

  void SendEnd(std::shared_ptr<InferCall> call) override {
    if (!call->status().ok()) {
      const auto retry = call->RetryAfterMs();
      if (retry.has_value()) context().AddTrailingMetadata(kRetryPushbackKey, absl::StrCat(*retry));
      return End(call->status());
    }
    const absl::Status written = Catching([&] {
      inference::ModelInferResponse response;
      call->WriteEnd(response);
      return SerializeMessage(response, response_);
    });
    if (!written.ok()) return End(written);
    SendIds(context(), ids_, Metadata::kInitial);
    End(absl::OkStatus());
  }

  void End(const absl::Status& status) {
    if (!status.ok()) SendIds(context(), ids_, Metadata::kTrailing);
    OperationBegins();
    Finish(ToGrpcStatus(status, ids_.request));
  }

  void Cancel(const absl::Status& why) {
    std::shared_ptr<InferCall> call;
    {
      MutexLock lock(mutex_);
      if (cancelled_.ok()) cancelled_ = why;
      call = call_;
    }
    if (call != nullptr) call->Cancel(why);
  }

  void OnRevoked(const absl::Status& why) override { Cancel(why); }
  void OnClient(const std::shared_ptr<const Client>& client) override {
    std::shared_ptr<InferCall> call;
    {
      MutexLock lock(mutex_);
      client_ = client;
      call = call_;
    }
    if (call != nullptr) call->OnClient(client);
  }
  void OnStuck(Duration /*waited*/) override {
    log::Warning("request.stuck", {{"id", ids_.request},
                                   {"method", MethodName(Method::kModelInfer)},
                                   {"trace_id", ids_.trace.trace_id}});
  }

  InferEnvironment& environment_;
  grpc::ByteBuffer& response_;  // gRPC's, until OnDone
  CallIds ids_;
  Mutex mutex_;
  std::shared_ptr<InferCall> call_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);                // why, once it is
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(mutex_);  // if it was read again
};

}  // namespace

grpc::ServerUnaryReactor* StartUnaryInfer(InferEnvironment& environment,
                                          grpc::CallbackServerContext& context,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer& response) {
  const auto call = std::make_shared<UnaryInfer>(environment, context, response);
  environment.active.Add(call);
  call->Start(request);
  return call.get();
}

}  // namespace aft::server::kserve
