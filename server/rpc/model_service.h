#pragma once

#include "aft/v1/models.grpc.pb.h"
#include "server/registry/model_registry.h"

namespace aft::server {

v1::Model EncodeModel(const ModelStatus& status);

class ModelService final
    : public v1::ModelService::WithRawCallbackMethod_Get<
          v1::ModelService::WithCallbackMethod_List<v1::ModelService::Service>> {
 public:
  explicit ModelService(const ModelRegistry& registry) : registry_(registry) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;

 private:
  // Answers Get.
  absl::Status Find(const grpc::ByteBuffer& bytes, grpc::ByteBuffer& response) const;

  const ModelRegistry& registry_;
};

}  // namespace aft::server
