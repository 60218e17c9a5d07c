#include "server/rpc/kserve/unary_infer.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/observability/log.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/message_bytes.h"

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
    auto client = environment_.identity.Find(context());
    if (status.ok()) status = client.status();
    if (!status.ok()) {
      environment_.metrics.calls.Count(Method::kModelInfer, status.code());
      return End(status);
    }
    call_ = std::make_shared<InferCall>(Method::kModelInfer, environment_,
                                        Caller{.ids = ids_,
                                               .peer = context().peer(),
                                               .client = *std::move(client),
                                               .deadline = DeadlineOf(context())},
                                        shared_from_this());
    grpc::ByteBuffer message(request);
    // gRPC would keep it as long as the call; it is not constant, only passed so.
    const_cast<grpc::ByteBuffer&>(request).Clear();
    call_->Start(std::move(message));
  }

  void OnCancel() override {
    if (call_ != nullptr) {
      call_->Cancel(stuck() ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kCancelled);
    }
  }
  void OnDone() override {
    ContextGoes();
    call_ = nullptr;                   // which holds this
    environment_.active.Remove(this);  // may delete this
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
    inference::ModelInferResponse response;
    call->WriteEnd(response);
    SerializeMessage(response, response_);
    SendIds(context(), ids_, Metadata::kInitial);
    End(absl::OkStatus());
  }

  void End(const absl::Status& status) {
    if (!status.ok()) SendIds(context(), ids_, Metadata::kTrailing);
    OperationBegins();
    Finish(ToGrpcStatus(status, ids_.request));
  }

  void OnStuck(Duration /*waited*/) override {
    log::Warning("request.stuck", {{"id", ids_.request},
                                   {"method", MethodName(Method::kModelInfer)},
                                   {"trace_id", ids_.trace.trace_id}});
  }

  InferEnvironment& environment_;
  grpc::ByteBuffer& response_;  // gRPC's, until OnDone
  CallIds ids_;
  std::shared_ptr<InferCall> call_;
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
