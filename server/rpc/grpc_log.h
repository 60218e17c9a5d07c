#ifndef AFT_SERVER_RPC_GRPC_LOG_H_
#define AFT_SERVER_RPC_GRPC_LOG_H_

namespace aft::server {

// Sends what gRPC and protobuf log into the server's own log, at level debug: every fault that
// matters reaches a caller as a status, and much of what gRPC calls an error is a client that left.
// Affects the process; call before the first use of gRPC.
void RouteLibraryLogs();

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_GRPC_LOG_H_
