#include "server/admission/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <string>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

absl::Status CheckFile(bool ok, absl::string_view field, const std::string& file) {
  if (ok) return absl::OkStatus();
  const auto error = ERR_peek_error();  // the first one, which has caused the others
  const char* const reason = ERR_reason_error_string(error);  // null for an error of the system
  ERR_clear_error();
  const std::string why =
      reason != nullptr ? reason : std::generic_category().message(ERR_GET_REASON(error));
  return BadField(field, absl::StrCat("cannot use ", file, ": ", why));
}

// Refuses a client that offers protocols without HTTP/1.1, for example HTTP/2 only.
int SelectHttp1(SSL* /*tls*/, const unsigned char** chosen, unsigned char* size,
                const unsigned char* offered, unsigned offered_size, void* /*unused*/) {
  static constexpr unsigned char kHttp1[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, size, kHttp1, sizeof(kHttp1) - 1, offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsConfig& tls) {
  ERR_clear_error();  // connections of this thread may have left some
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Connections live long, so there is no session resumption, which would need rotating keys.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context.get(), &SelectHttp1, nullptr);
  AFT_RETURN_IF_ERROR(
      CheckFile(SSL_CTX_use_certificate_chain_file(context.get(), tls.cert_file.c_str()) == 1,
                "security.tls.cert_file", tls.cert_file));
  AFT_RETURN_IF_ERROR(CheckFile(
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key_file.c_str(), SSL_FILETYPE_PEM) == 1,
      "security.tls.key_file", tls.key_file));
  if (tls.client_ca_file.empty()) return context;
  AFT_RETURN_IF_ERROR(CheckFile(
      SSL_CTX_load_verify_locations(context.get(), tls.client_ca_file.c_str(), nullptr) == 1,
      "security.tls.client_ca_file", tls.client_ca_file));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Load(const SecurityConfig& config) {
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<SSL_CTX> context, MakeTlsContext(config.tls));
  return absl::WrapUnique(new TlsFiles(config, std::move(context)));
}

std::shared_ptr<SSL_CTX> TlsFiles::Newest() {
  const Clock::time_point now = Clock::now();
  if (now - read_at_ < reload_) return context_;
  read_at_ = now;
  auto read = MakeTlsContext(tls_);
  if (read.ok()) {
    context_ = *std::move(read);
  } else {
    log::Warning("tls.files_rejected", {{"error", read.status().message()}});
  }
  return context_;
}

}  // namespace aft::server
