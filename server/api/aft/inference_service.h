#pragma once

#include <memory>

#include "aft/v1/inference.grpc.pb.h"
#include "server/api/aft/typed_exchange.h"
#include "server/transport/call_carrier.h"

namespace aft::server {

// aft.v1.InferenceService. Each of its methods is a Call with its own Exchange.
class InferenceService final
    : public v1::InferenceService::WithRawCallbackMethod_Generate<
          v1::InferenceService::WithRawCallbackMethod_Complete<
              v1::InferenceService::WithRawCallbackMethod_Score<
                  v1::InferenceService::WithRawCallbackMethod_Encode<
                      v1::InferenceService::WithRawCallbackMethod_Tokenize<
                          v1::InferenceService::WithRawCallbackMethod_Detokenize<
                              v1::InferenceService::Service>>>>>> {
 public:
  // Both must outlive the service.
  InferenceService(TransportEnvironment& transport, InferenceEnvironment& inference)
      : transport_(transport), inference_(inference) {}

 private:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using StreamReactor = grpc::ServerWriteReactor<Bytes>;
  using UnaryReactor = grpc::ServerUnaryReactor;

  StreamReactor* Generate(Context* context, const Bytes* request) override {
    return Stream<GenerateCodec>(*context, *request);
  }
  StreamReactor* Score(Context* context, const Bytes* request) override {
    return Stream<ScoreCodec>(*context, *request);
  }
  StreamReactor* Encode(Context* context, const Bytes* request) override {
    return Stream<EncodeCodec>(*context, *request);
  }
  UnaryReactor* Complete(Context* context, const Bytes* request, Bytes* response) override {
    return Unary<TypedExchange<CompleteCodec>>(*context, *request, *response);
  }
  UnaryReactor* Tokenize(Context* context, const Bytes* request, Bytes* response) override {
    return Unary<AnswerExchange<TokenizeCodec>>(*context, *request, *response);
  }
  UnaryReactor* Detokenize(Context* context, const Bytes* request, Bytes* response) override {
    return Unary<AnswerExchange<DetokenizeCodec>>(*context, *request, *response);
  }

  template <typename Codec>
  StreamReactor* Stream(Context& context, const Bytes& request) {
    return StreamCarrier::Start(transport_, inference_, std::make_unique<TypedExchange<Codec>>(),
                                context, request);
  }
  template <typename E>
  UnaryReactor* Unary(Context& context, const Bytes& request, Bytes& response) {
    return UnaryCarrier::Start(transport_, inference_, std::make_unique<E>(), context, request,
                               response);
  }

  TransportEnvironment& transport_;
  InferenceEnvironment& inference_;
};

}  // namespace aft::server
