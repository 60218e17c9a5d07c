#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "boost/asio/ip/tcp.hpp"
#include "openssl/ssl.h"

namespace aft::server {

// The bytes of one connection, by a socket that does not block, under TLS or bare. The first bytes
// that are read under TLS include the handshake. Used by the server's thread.
class HttpStream {
 public:
  using Ready = std::function<void(boost::system::error_code)>;

  // `tls`: null for a bare connection. The process must ignore SIGPIPE if it is not null.
  HttpStream(boost::asio::ip::tcp::socket socket, SSL_CTX* tls);

  // Reads or writes as much as is possible now. `error` is would_block if that is nothing; then
  // Wait of the same direction says when to try again, with the same bytes.
  size_t Read(void* data, size_t size, boost::system::error_code& error);
  size_t Write(absl::string_view bytes, boost::system::error_code& error);
  // Calls `ready` from the loop.
  void WaitToRead(Ready ready);
  void WaitToWrite(Ready ready);

  // Tells the client that nothing more is sent.
  void Shutdown();
  void Close();

  auto executor() { return socket_.get_executor(); }
  // The names by which the client's certificate is known: its DNS names, its URIs and its common
  // name. Names of other kinds are left out, because an authority may not have verified them.
  std::vector<std::string> CertificateNames() const;

 private:
  // Says what the last call of OpenSSL, which returned `result`, means.
  boost::system::error_code ErrorOf(int result);
  void Wait(bool to_read, Ready ready);

  boost::asio::ip::tcp::socket socket_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
  // What TLS waits for, which may be the other direction during a handshake.
  bool reads_to_read_ = true;
  bool reads_to_write_ = false;
};

}  // namespace aft::server
