#pragma once

#include "aft/v1/models.grpc.pb.h"
#include "server/registry/model_registry.h"
#include "server/rpc/client_identity.h"

namespace aft::server {

v1::Model EncodeModel(const ModelStatus& status);

// Tells a client of the models that it may use.
class ModelService final
    : public v1::ModelService::WithRawCallbackMethod_Get<
          v1::ModelService::WithRawCallbackMethod_List<v1::ModelService::Service>> {
 public:
  // Both must outlive the service.
  ModelService(const ModelRegistry& registry, const ClientIdentity& identity)
      : registry_(registry), identity_(identity) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;

 private:
  absl::Status AnswerList(const Client& client, grpc::ByteBuffer& response) const;
  absl::Status AnswerGet(const Client& client, const grpc::ByteBuffer& bytes,
                         grpc::ByteBuffer& response) const;

  const ModelRegistry& registry_;
  const ClientIdentity& identity_;
};

}  // namespace aft::server
