#ifndef AFT_SERVER_RPC_INFERENCE_SERVICE_H_
#define AFT_SERVER_RPC_INFERENCE_SERVICE_H_

#include <memory>

#include "aft/v1/inference.grpc.pb.h"
#include "server/rpc/encode_codec.h"
#include "server/rpc/generate_codec.h"
#include "server/rpc/score_codec.h"
#include "server/rpc/stream_call.h"
#include "server/rpc/typed_call.h"

namespace aft::server {

class InferenceService final
    : public v1::InferenceService::WithRawCallbackMethod_Generate<
          v1::InferenceService::WithRawCallbackMethod_Score<
              v1::InferenceService::WithRawCallbackMethod_Encode<v1::InferenceService::Service>>> {
 public:
  // `registry`, `metrics` and `active` must outlive the service.
  InferenceService(ModelRegistry& registry, ServerMetrics& metrics, ActiveCalls& active,
                   const LimitsConfig& limits)
      : environment_{registry, metrics, active, limits, {}} {}

  CallReactor* Generate(grpc::CallbackServerContext* context,
                        const grpc::ByteBuffer* request) override {
    return Start<GenerateCodec>(*context, *request);
  }
  CallReactor* Score(grpc::CallbackServerContext* context,
                     const grpc::ByteBuffer* request) override {
    return Start<ScoreCodec>(*context, *request);
  }
  CallReactor* Encode(grpc::CallbackServerContext* context,
                      const grpc::ByteBuffer* request) override {
    return Start<EncodeCodec>(*context, *request);
  }

 private:
  template <typename Codec>
  CallReactor* Start(grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    return StreamCall::Start(std::make_shared<TypedCall<Codec>>(environment_, context), request);
  }

  CallEnvironment environment_;
};

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_INFERENCE_SERVICE_H_
