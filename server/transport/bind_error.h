#pragma once

#include <string>

namespace aft::server {

// gRPC says only that it could not listen on host:port. Tries the same with a plain socket to learn
// why, e.g. "Address already in use".
std::string ExplainBindError(const std::string& address);

}  // namespace aft::server
