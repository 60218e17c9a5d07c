#pragma once

#include "absl/functional/function_ref.h"
#include "aft/v1/models.grpc.pb.h"
#include "server/registry/model_registry.h"
#include "server/rpc/call_environment.h"

namespace aft::server {

v1::Model EncodeModel(const ModelStatus& status);

// Tells a client of the models that it may use.
class ModelService final
    : public v1::ModelService::WithRawCallbackMethod_Get<
          v1::ModelService::WithRawCallbackMethod_List<v1::ModelService::Service>> {
 public:
  // What the environment refers to, and the registry, must outlive the service.
  ModelService(const CallEnvironment& environment, const ModelRegistry& registry)
      : environment_(environment), registry_(registry) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;

 private:
  // Who calls, the answer, the end.
  grpc::ServerUnaryReactor* Answer(Method method, grpc::CallbackServerContext& context,
                                   absl::FunctionRef<absl::Status(const Client&)> answer);
  absl::Status AnswerList(const Client& client, grpc::ByteBuffer& response) const;
  absl::Status AnswerGet(const Client& client, const grpc::ByteBuffer& bytes,
                         grpc::ByteBuffer& response) const;

  const CallEnvironment environment_;
  const ModelRegistry& registry_;
};

}  // namespace aft::server
