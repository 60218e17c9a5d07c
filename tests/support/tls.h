#pragma once

#include <memory>
#include <string>

#include "openssl/types.h"
#include "tests/support/certificates.h"
#include "tests/support/tcp.h"

namespace aft {

// A TLS connection to a server whose certificate `authority` has signed. If the handshake fails,
// everything that is sent is lost and nothing is received. From then on the process ignores
// SIGPIPE.
class TlsConnection final : public TcpConnection {
 public:
  // `own` is the client's certificate, for servers that ask for one. `protocol` is the only
  // protocol that is offered; "": no protocol is offered.
  TlsConnection(const std::string& address, const Certificate& authority,
                const Certificate& own = {}, const std::string& protocol = "http/1.1",
                int receive_buffer = 0);
  ~TlsConnection() override;

  void Send(const std::string& text) const override { TrySend(text); }
  bool TrySend(const std::string& text) const override;
  // Sends a record without data: TLS 1.3's change of this side's key.
  void UpdateKey() const;

 private:
  long Receive(void* data, size_t size) const override;

  const std::shared_ptr<SSL> tls_;
};

}  // namespace aft
