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

// Reads and writes the bytes of one connection over a socket that does not block, with or without
// TLS. With TLS, the first reads also make the handshake. Only the server's thread uses it.
class HttpStream {
 public:
  using Ready = std::function<void(boost::system::error_code)>;

  // `tls`: null for a connection without TLS. If it is not null, the process must ignore SIGPIPE.
  HttpStream(boost::asio::ip::tcp::socket socket, SSL_CTX* tls);

  // Read or write as much as is possible now. `error` is would_block if that is nothing. The caller
  // then has to wait (WaitToRead or WaitToWrite) and try again with the same bytes.
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
  // Returns the error of the last call of OpenSSL, which returned `result`.
  boost::system::error_code ErrorOf(int result);
  void Wait(bool to_read, Ready ready);

  boost::asio::ip::tcp::socket socket_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
  // Whether a read or a write that cannot continue has to wait until the socket can be read. During
  // a handshake this may be the other direction.
  bool reads_to_read_ = true;
  bool reads_to_write_ = false;
};

}  // namespace aft::server
