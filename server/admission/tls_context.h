#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "openssl/types.h"
#include "server/config/config.h"

namespace aft::server {

// Makes the context with which a server of HTTP/1.1 speaks TLS 1.2 or later. It has the server's
// certificate and key and, if there is a client_ca_file, the authorities of clients' certificates.
// INVALID_ARGUMENT names the file that cannot be used. REQUIRES: tls.cert_file is not empty.
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsConfig& tls);

// The TLS context of files that may change while the server runs. Only one thread may use it.
class TlsFiles {
 public:
  // Errors as MakeTlsContext.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(const SecurityConfig& config);

  // Reads the files again if `config.reload` has passed since the last time. Files that cannot be
  // used are logged, and the former context stays.
  std::shared_ptr<SSL_CTX> Newest();

 private:
  using Clock = std::chrono::steady_clock;

  TlsFiles(const SecurityConfig& config, std::shared_ptr<SSL_CTX> context)
      : tls_(config.tls), reload_(config.reload), context_(std::move(context)) {}

  const TlsConfig tls_;
  const std::chrono::seconds reload_;
  std::shared_ptr<SSL_CTX> context_;
  Clock::time_point read_at_ = Clock::now();
};

}  // namespace aft::server
