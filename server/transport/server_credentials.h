#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "server/config/config.h"

namespace aft::server {

// Plaintext, TLS, or mutual TLS if there is a client_ca_file. The files are read again every
// config.reload. INVALID_ARGUMENT names the file that cannot be used.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const SecurityConfig& config);

}  // namespace aft::server
