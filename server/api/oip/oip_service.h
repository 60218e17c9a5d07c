#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/api/oip/infer_exchange.h"
#include "server/api/oip/statistics.h"
#include "server/api/oip/stream_infer.h"
#include "server/call/call.h"
#include "server/registry/model_registry.h"
#include "server/transport/call_carrier.h"
#include "server/transport/health_service.h"

namespace aft::server::oip {

// inference.GRPCInferenceService. Every call has raw bytes.
using RawService = inference::GRPCInferenceService;
using RawUnary = RawService::WithRawCallbackMethod_ServerLive<
    RawService::WithRawCallbackMethod_ServerReady<RawService::WithRawCallbackMethod_ModelReady<
        RawService::WithRawCallbackMethod_ServerMetadata<
            RawService::WithRawCallbackMethod_ModelMetadata<
                RawService::WithRawCallbackMethod_ModelConfig<
                    RawService::WithRawCallbackMethod_ModelStatistics<
                        RawService::WithRawCallbackMethod_RepositoryIndex<
                            RawService::WithRawCallbackMethod_RepositoryModelLoad<
                                RawService::WithRawCallbackMethod_RepositoryModelUnload<
                                    RawService::Service>>>>>>>>>>;

// The Open Inference Protocol, in Triton's dialect, over the same engines as aft.v1. ServerLive and
// ServerReady, like health, do not identify the caller; all other methods do. Thread-safe. The
// service must outlive every call, so it must be destroyed after the gRPC server.
class OipService final : public RawService::WithRawCallbackMethod_ModelInfer<
                             RawService::WithRawCallbackMethod_ModelStreamInfer<RawUnary>> {
 public:
  // All must outlive the service.
  OipService(TransportEnvironment& transport, InferenceEnvironment& inference,
             ModelRegistry& registry, const HealthService& health)
      : statistics_(registry),
        transport_(transport),
        inference_(inference),
        registry_(registry),
        health_(health) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  using Bytes = grpc::ByteBuffer;

  Reactor* ServerLive(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ServerReady(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ModelReady(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ServerMetadata(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ModelMetadata(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ModelConfig(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ModelStatistics(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* RepositoryIndex(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* RepositoryModelLoad(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* RepositoryModelUnload(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ModelInfer(Context* context, const Bytes* request, Bytes* response) override {
    return UnaryCarrier::Start(transport_, inference_, std::make_unique<InferExchange>(statistics_),
                               *context, *request, *response);
  }
  BidiReactor* ModelStreamInfer(Context* context) override {
    return StreamInfer::Start(transport_, inference_, statistics_, *context);
  }

 private:
  // Answers without identifying the caller.
  Reactor* Tell(Method method, Context& context, const Bytes& request, Bytes& response,
                const google::protobuf::MessageLite& message);
  // Identifies the caller, parses the request and answers it.
  template <typename Request, typename Response>
  Reactor* Answer(Method method, Context& context, const Bytes& request, Bytes& response,
                  absl::FunctionRef<absl::Status(const Client&, const Request&, Response&)> answer);
  // Whether the client may load and unload models, by the repository's config.
  absl::Status CheckControl(const Client& client) const;
  // RepositoryModelLoad and RepositoryModelUnload. The call ends when the registry has finished,
  // even if the connection is lost. It ends earlier if the client may not give the order any more;
  // then the order is cancelled too, unless it has begun.
  using Action = void (ModelRegistry::*)(const std::string&, ModelRegistry::Done,
                                         ModelRegistry::Wanted);
  template <typename Request, typename Response>
  Reactor* Order(Method method, Context& context, const Bytes& bytes, Bytes& response,
                 Action action, const char* event);
  // Returns the model if it is served and the client may use it.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Find(const Client& client,
                                                          const std::string& name,
                                                          const std::string& version) const;

  Statistics statistics_;
  TransportEnvironment& transport_;
  InferenceEnvironment& inference_;
  ModelRegistry& registry_;
  const HealthService& health_;
};

}  // namespace aft::server::oip
