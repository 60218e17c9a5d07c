#pragma once

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/admission/tls_context.h"

namespace aft::server {

// Plaintext if `files` is null, otherwise TLS, or mutual TLS if there is a client_ca_file. Changes
// of the files' copies are taken over within a second.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles* files);

}  // namespace aft::server
