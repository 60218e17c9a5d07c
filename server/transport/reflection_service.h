#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/impl/service_type.h"
#include "server/transport/transport_environment.h"

namespace aft::server {

// gRPC's server reflection (`version` 1) and what it was called before (0, v1alpha). Not the
// library's: that one cannot be switched off, asks nobody who he is, and holds a thread for each
// stream. `names`: the services that it lists. The service must outlive its calls, that is, be
// destroyed after the gRPC server.
std::unique_ptr<grpc::Service> MakeReflectionService(int version,
                                                     const TransportEnvironment& environment,
                                                     std::vector<std::string> names);

}  // namespace aft::server
