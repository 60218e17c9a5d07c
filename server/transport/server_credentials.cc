#include "server/transport/server_credentials.h"

#include "base/status_macros.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "server/admission/tls_context.h"

namespace aft::server {

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const SecurityConfig& config) {
  const TlsConfig& tls = config.tls;
  if (tls.cert_file.empty()) return grpc::InsecureServerCredentials();
  // gRPC itself would only log what is wrong with a file, and then refuse every connection.
  AFT_RETURN_IF_ERROR(MakeTlsContext(tls).status());
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(
          tls.key_file, tls.cert_file, tls.client_ca_file,
          static_cast<unsigned>(config.reload.count())));
  options.watch_identity_key_cert_pairs();
  if (!tls.client_ca_file.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace aft::server
