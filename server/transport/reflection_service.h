#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/impl/service_type.h"
#include "server/transport/transport_environment.h"

namespace aft::server {

// gRPC's server reflection: v1 if `version` is 1, v1alpha if it is 0. The library's own service is
// not used, because it cannot be switched off, does not check the caller, and holds a thread for
// each stream. `names`: the services that it lists. The service must outlive its calls, so it must
// be destroyed after the gRPC server.
std::unique_ptr<grpc::Service> MakeReflectionService(int version,
                                                     const TransportEnvironment& environment,
                                                     std::vector<std::string> names);

}  // namespace aft::server
