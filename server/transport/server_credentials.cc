#include "server/transport/server_credentials.h"

#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "server/config/config.h"

namespace aft::server {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles* files) {
  if (files == nullptr) return grpc::InsecureServerCredentials();
  const TlsConfig& copies = files->copies();
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(
          copies.key_file, copies.cert_file, copies.client_ca_file, /*refresh_interval_sec=*/1));
  options.watch_identity_key_cert_pairs();
  if (!copies.client_ca_file.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace aft::server
