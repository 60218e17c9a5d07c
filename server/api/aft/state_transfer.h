#pragma once

#include "aft/v1/states.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/call/decode_pool.h"
#include "server/registry/model_table.h"
#include "server/states/state_access.h"
#include "server/transport/call_metadata.h"
#include "server/transport/transport_environment.h"

namespace aft::server {

// The objects that all calls of StateService share. They outlive the calls.
struct StateEnvironment : TransportEnvironment {
  StateAccess& states;
  const ModelTable& registry;
  DecodePool& decoders;
};

// StateService.Export and Import. Each returns the reactor of one call, which deletes itself when
// gRPC is done with it. Parsing, sealing and opening run in the decode pool. The memory of a call
// is charged to the memory ledger, and a call whose client stalls is cancelled (ActiveCalls).
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartExport(StateEnvironment& environment,
                                                        grpc::CallbackServerContext& context,
                                                        const grpc::ByteBuffer& request);
grpc::ServerReadReactor<grpc::ByteBuffer>* StartImport(StateEnvironment& environment,
                                                       grpc::CallbackServerContext& context,
                                                       grpc::ByteBuffer& response);

}  // namespace aft::server
