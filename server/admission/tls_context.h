#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/periodic.h"
#include "openssl/types.h"
#include "server/config/config.h"

namespace aft::server {

// Makes the context with which a server of HTTP/1.1 speaks TLS 1.2 or later. It has the server's
// certificate and key and, if there is a client_ca_file, the authorities of clients' certificates.
// INVALID_ARGUMENT names the file that cannot be used. REQUIRES: tls.cert_file is not empty.
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsConfig& tls);

// The files of TLS, which may change while the server runs. Thread-safe.
class TlsFiles {
 public:
  // Reads the files, and calls Refresh every `config.reload` on a thread of its own.
  // INVALID_ARGUMENT names the file that cannot be used. REQUIRES: config.tls.cert_file is not
  // empty.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(const SecurityConfig& config);

  // Reads the files again. Files that cannot be used together are logged and change nothing.
  void Refresh();

  // Whether the files could not be used when they were read last.
  bool rejected() const { return is_rejected_; }
  // When the certificate in use expires, in seconds of Unix time.
  int64_t expires() const;

  // For HTTP: what the newest usable files say.
  std::shared_ptr<SSL_CTX> context() const;

  // For gRPC, which reads files itself and refuses every connection if it cannot use them: the
  // paths of copies of the newest usable files, in memory. They exist until the process ends,
  // because threads of gRPC may read them after its server has ended.
  const TlsConfig& copies() const { return copies_; }

 private:
  explicit TlsFiles(const TlsConfig& tls) : tls_(tls) {}
  // Replaces the copies and the context if the files can be used.
  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);

  const TlsConfig tls_;
  TlsConfig copies_;  // complete when Load returns
  Mutex read_mutex_;
  // The copies' descriptors; -1 where there is no file.
  std::array<int, 3> descriptors_ ABSL_GUARDED_BY(read_mutex_) = {-1, -1, -1};
  std::string rejected_ ABSL_GUARDED_BY(read_mutex_);  // the error that was logged last
  std::atomic<bool> is_rejected_{false};
  mutable Mutex mutex_;
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Periodic> watch_;  // last: its thread uses all of the above
};

}  // namespace aft::server
