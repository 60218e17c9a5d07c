#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/oip/infer_call.h"

namespace aft::server::kserve {

// ModelInfer: the reactor of one call, which ActiveCalls owns until gRPC is done with it.
grpc::ServerUnaryReactor* StartUnaryInfer(InferEnvironment& environment,
                                          grpc::CallbackServerContext& context,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer& response);

}  // namespace aft::server::kserve
