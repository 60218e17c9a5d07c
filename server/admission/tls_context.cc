#include "server/admission/tls_context.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pemerr.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/config/text_proto.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

constexpr struct {
  const char* name;
  std::string TlsConfig::*file;
} kFields[] = {{"security.tls.cert_file", &TlsConfig::cert_file},
               {"security.tls.key_file", &TlsConfig::key_file},
               {"security.tls.client_ca_file", &TlsConfig::client_ca_file}};

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

int NoPassword(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*unused*/) {
  ERR_raise(ERR_LIB_PEM, PEM_R_BAD_PASSWORD_READ);  // otherwise: "interrupted or cancelled"
  return -1;
}

// Reads the files of `tls`; errors name those of `names`.
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const TlsConfig& tls, const TlsConfig& names) {
  ERR_clear_error();  // connections of this thread may have left some
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Connections live long, so there is no session resumption, which would need rotating keys.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context.get(), &SelectHttp1, nullptr);
  // Without it OpenSSL would ask the terminal for the password of an encrypted key, and wait.
  SSL_CTX_set_default_passwd_cb(context.get(), &NoPassword);
  AFT_RETURN_IF_ERROR(
      CheckFile(SSL_CTX_use_certificate_chain_file(context.get(), tls.cert_file.c_str()) == 1,
                kFields[0].name, names.cert_file));
  AFT_RETURN_IF_ERROR(CheckFile(
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key_file.c_str(), SSL_FILETYPE_PEM) == 1,
      kFields[1].name, names.key_file));
  // OpenSSL accepts a key of another kind than the certificate's, but no connection.
  if (SSL_CTX_check_private_key(context.get()) != 1) {
    ERR_clear_error();
    return BadField(kFields[1].name,
                    absl::StrCat("the key in ", names.key_file,
                                 " is not that of the certificate in ", names.cert_file));
  }
  if (tls.client_ca_file.empty()) return context;
  AFT_RETURN_IF_ERROR(CheckFile(
      SSL_CTX_load_verify_locations(context.get(), tls.client_ca_file.c_str(), nullptr) == 1,
      kFields[2].name, names.client_ca_file));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

// Copies the file of a field into memory, and returns the copy's descriptor.
absl::StatusOr<int> CopyToMemory(const char* field, const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadConfigFile(path);
  if (!bytes.ok()) {
    return BadField(field, absl::StrCat("cannot use ", path, ": ", bytes.status().message()));
  }
  // The flag says that the copy is no program, as some systems demand. Linux before 6.3 lacks it.
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL
  int copy = memfd_create("tls", MFD_CLOEXEC | kNoExecSeal);
  if (copy < 0 && errno == EINVAL) copy = memfd_create("tls", MFD_CLOEXEC);
  if (copy >= 0 && write(copy, bytes->data(), bytes->size()) == std::ssize(*bytes)) return copy;
  if (copy >= 0) close(copy);
  return BadField(field, absl::StrCat("cannot use ", path, ": no memory for a copy"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsConfig& tls) {
  return MakeContext(tls, tls);
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Load(const SecurityConfig& config) {
  auto files = absl::WrapUnique(new TlsFiles(config.tls));
  {
    MutexLock lock(files->read_mutex_);
    AFT_RETURN_IF_ERROR(files->Read());
  }
  files->watch_ = std::make_unique<Periodic>("aft-tls", config.reload,
                                             [files = files.get()] { files->Refresh(); });
  return files;
}

void TlsFiles::Refresh() {
  MutexLock lock(read_mutex_);
  const absl::Status status = Read();
  is_rejected_ = !status.ok();
  if (!status.ok() && status.message() != rejected_) {
    log::Warning("tls.files_rejected", {{"error", status.message()}});
  }
  rejected_ = std::string(status.message());
}

absl::Status TlsFiles::Read() {
  std::array<int, 3> read = {-1, -1, -1};
  const absl::Cleanup close_all = [&read] {
    for (const int file : read) {
      if (file >= 0) close(file);
    }
  };
  TlsConfig paths;
  for (size_t i = 0; i < read.size(); ++i) {
    const auto [name, file] = kFields[i];
    if ((tls_.*file).empty()) continue;
    AFT_ASSIGN_OR_RETURN(read[i], CopyToMemory(name, tls_.*file));
    paths.*file = absl::StrCat("/proc/self/fd/", read[i]);
  }
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<SSL_CTX> context, MakeContext(paths, tls_));
  for (size_t i = 0; i < read.size(); ++i) {
    if (descriptors_[i] >= 0) {
      // A thread that opens the path meanwhile gets the old copy or the new one.
      if (dup3(read[i], descriptors_[i], O_CLOEXEC) < 0) return absl::ErrnoToStatus(errno, "dup3");
    } else {
      copies_.*kFields[i].file = paths.*kFields[i].file;
      descriptors_[i] = std::exchange(read[i], -1);
    }
  }
  MutexLock lock(mutex_);
  context_ = std::move(context);
  return absl::OkStatus();
}

int64_t TlsFiles::expires() const {
  const std::shared_ptr<SSL_CTX> used = context();
  tm end = {};
  ASN1_TIME_to_tm(X509_get0_notAfter(SSL_CTX_get0_certificate(used.get())), &end);
  return timegm(&end);
}

std::shared_ptr<SSL_CTX> TlsFiles::context() const {
  MutexLock lock(mutex_);
  return context_;
}

}  // namespace aft::server
