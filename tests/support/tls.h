#pragma once

#include <memory>
#include <string>

#include "openssl/types.h"
#include "tests/support/certificates.h"
#include "tests/support/tcp.h"

namespace aft {

// A connection under TLS to a server whose certificate `authority` has signed. If the handshake
// fails, what is sent is lost and nothing comes. The process ignores SIGPIPE from then on.
class TlsConnection final : public TcpConnection {
 public:
  // `own`: shown if the server asks. `protocol`: offered alone; "": none is.
  TlsConnection(const std::string& address, const Certificate& authority,
                const Certificate& own = {}, const std::string& protocol = "http/1.1",
                int receive_buffer = 0);
  ~TlsConnection() override;

  void Send(const std::string& text) const override;
  // Sends a record without data: TLS 1.3's change of this side's key.
  void UpdateKey() const;

 private:
  long Receive(void* data, size_t size) const override;

  const std::shared_ptr<SSL> tls_;
};

}  // namespace aft
