#pragma once

#include <string>

namespace aft::server {

// Explains why gRPC could not listen on host:port, for example "Address already in use". gRPC does
// not say why, so this tries to listen with a plain socket.
std::string ExplainBindError(const std::string& address);

}  // namespace aft::server
