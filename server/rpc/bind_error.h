#ifndef AFT_SERVER_RPC_BIND_ERROR_H_
#define AFT_SERVER_RPC_BIND_ERROR_H_

#include <string>

namespace aft::server {

// gRPC says only that it could not listen on host:port. Tries the same with a plain socket to learn
// why, e.g. "Address already in use".
std::string ExplainBindError(const std::string& address);

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_BIND_ERROR_H_
