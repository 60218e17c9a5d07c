#include "server/transport/server_credentials.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "server/config/checks.h"

namespace aft::server {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsServerCredentialsOptions;

absl::Status CheckFile(bool ok, absl::string_view field, const std::string& file) {
  if (ok) return absl::OkStatus();
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return BadField(field, absl::StrCat("cannot use ", file, ": ",
                                      reason != nullptr ? reason : "unknown reason"));
}

// gRPC itself would only log what is wrong, and refuse every connection.
absl::Status CheckFiles(const TlsConfig& tls) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                  &SSL_CTX_free);
  AFT_RETURN_IF_ERROR(
      CheckFile(SSL_CTX_use_certificate_chain_file(context.get(), tls.cert_file.c_str()) == 1,
                "security.tls.cert_file", tls.cert_file));
  AFT_RETURN_IF_ERROR(CheckFile(
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key_file.c_str(), SSL_FILETYPE_PEM) == 1,
      "security.tls.key_file", tls.key_file));
  if (tls.client_ca_file.empty()) return absl::OkStatus();
  return CheckFile(
      SSL_CTX_load_verify_locations(context.get(), tls.client_ca_file.c_str(), nullptr) == 1,
      "security.tls.client_ca_file", tls.client_ca_file);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const SecurityConfig& config) {
  const TlsConfig& tls = config.tls;
  if (tls.cert_file.empty()) return grpc::InsecureServerCredentials();
  AFT_RETURN_IF_ERROR(CheckFiles(tls));
  TlsServerCredentialsOptions options(std::make_shared<FileWatcherCertificateProvider>(
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
