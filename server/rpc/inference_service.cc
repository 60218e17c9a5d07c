#include "server/rpc/inference_service.h"

namespace aft::server {

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return GenerateCall::Start(environment_, *context, *request);
}

}  // namespace aft::server
