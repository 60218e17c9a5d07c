#include "server/rpc/inference_service.h"

#include <memory>

#include "server/rpc/encode_call.h"
#include "server/rpc/generate_call.h"
#include "server/rpc/score_call.h"

namespace aft::server {

CallReactor* InferenceService::Generate(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request) {
  return StreamCall::Start(std::make_shared<GenerateCall>(environment_, *context), *request);
}

CallReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request) {
  return StreamCall::Start(std::make_shared<ScoreCall>(environment_, *context), *request);
}

CallReactor* InferenceService::Encode(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request) {
  return StreamCall::Start(std::make_shared<EncodeCall>(environment_, *context), *request);
}

}  // namespace aft::server
