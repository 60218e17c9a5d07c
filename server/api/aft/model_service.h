#pragma once

#include "aft/v1/models.grpc.pb.h"
#include "server/registry/model_table.h"
#include "server/transport/unary_call.h"

namespace aft::server {

v1::Model EncodeModel(const ModelStatus& status);

// Tells a client about the models that it may use.
class ModelService final
    : public v1::ModelService::WithRawCallbackMethod_Get<
          v1::ModelService::WithRawCallbackMethod_List<v1::ModelService::Service>> {
 public:
  // The registry, and the objects that the environment refers to, must outlive the service.
  ModelService(const TransportEnvironment& environment, const ModelTable& registry)
      : environment_(environment), registry_(registry) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;

 private:
  // Each identifies the caller and answers the request.
  absl::Status AnswerList(UnaryCall& call) const;
  absl::Status AnswerGet(UnaryCall& call, const grpc::ByteBuffer& bytes) const;

  const TransportEnvironment environment_;
  const ModelTable& registry_;
};

}  // namespace aft::server
