#include "server/http/http_stream.h"

#include <algorithm>
#include <climits>
#include <memory>
#include <utility>

#include "boost/asio/buffer.hpp"
#include "boost/asio/error.hpp"
#include "boost/asio/post.hpp"
#include "openssl/err.h"
#include "openssl/x509v3.h"

namespace aft::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

int SizeOf(size_t size) { return static_cast<int>(std::min<size_t>(size, INT_MAX)); }

void AddName(const ASN1_STRING* name, std::vector<std::string>& names) {
  const auto* const data = reinterpret_cast<const char*>(ASN1_STRING_get0_data(name));
  names.emplace_back(data, static_cast<size_t>(ASN1_STRING_length(name)));
}

}  // namespace

HttpStream::HttpStream(tcp::socket socket, SSL_CTX* tls)
    : socket_(std::move(socket)), tls_(tls != nullptr ? SSL_new(tls) : nullptr, &SSL_free) {
  if (tls == nullptr) return;
  if (tls_ == nullptr || SSL_set_fd(tls_.get(), socket_.native_handle()) != 1) {
    throw std::bad_alloc();
  }
  // An idle connection keeps no buffers.
  SSL_set_mode(tls_.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                               SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // With this mode one read would last as long as records without data arrive, such as key updates.
  SSL_clear_mode(tls_.get(), SSL_MODE_AUTO_RETRY);
  SSL_set_accept_state(tls_.get());
}

error_code HttpStream::ErrorOf(int result) {
  const int kind = SSL_get_error(tls_.get(), result);
  if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
    return asio::error::would_block;
  }
  if (kind == SSL_ERROR_ZERO_RETURN) return asio::error::eof;
  if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST) {
    static constexpr absl::string_view kHint =
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 35\r\n\r\n"
        "this port speaks TLS: use https://\n";
    error_code ignored;
    socket_.write_some(asio::buffer(kHint.data(), kHint.size()), ignored);
  }
  return asio::error::connection_aborted;
}

size_t HttpStream::Read(void* data, size_t size, error_code& error) {
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(data, size), error);
  ERR_clear_error();
  const int bytes = SSL_read(tls_.get(), data, SizeOf(size));
  error = bytes > 0 ? error_code() : ErrorOf(bytes);
  reads_to_read_ = SSL_want_write(tls_.get()) == 0;
  return static_cast<size_t>(std::max(bytes, 0));
}

size_t HttpStream::Write(absl::string_view bytes, error_code& error) {
  if (tls_ == nullptr) return socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
  ERR_clear_error();
  const int written = SSL_write(tls_.get(), bytes.data(), SizeOf(bytes.size()));
  error = written > 0 ? error_code() : ErrorOf(written);
  reads_to_write_ = SSL_want_read(tls_.get()) != 0;
  return static_cast<size_t>(std::max(written, 0));
}

void HttpStream::Wait(bool to_read, Ready ready) {
  socket_.async_wait(to_read ? tcp::socket::wait_read : tcp::socket::wait_write, std::move(ready));
}

void HttpStream::WaitToRead(Ready ready) {
  // The socket does not report bytes that TLS has read already.
  if (tls_ != nullptr && SSL_pending(tls_.get()) > 0) {
    return asio::post(executor(), [ready = std::move(ready)] { ready({}); });
  }
  Wait(reads_to_read_, std::move(ready));
}

void HttpStream::WaitToWrite(Ready ready) { Wait(reads_to_write_, std::move(ready)); }

void HttpStream::Shutdown() {
  if (tls_ != nullptr) {
    ERR_clear_error();
    SSL_shutdown(tls_.get());
  }
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void HttpStream::Close() {
  error_code ignored;
  socket_.close(ignored);
}

std::vector<std::string> HttpStream::CertificateNames() const {
  std::vector<std::string> names;
  const X509* const certificate = tls_ != nullptr ? SSL_get0_peer_certificate(tls_.get()) : nullptr;
  if (certificate == nullptr) return names;
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> alternatives(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  for (const int kind : {GEN_DNS, GEN_URI}) {
    for (int i = 0; i < sk_GENERAL_NAME_num(alternatives.get()); ++i) {
      const GENERAL_NAME* const name = sk_GENERAL_NAME_value(alternatives.get(), i);
      if (name->type == kind) AddName(name->d.ia5, names);
    }
  }
  X509_NAME* const subject = X509_get_subject_name(certificate);
  if (const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1); at >= 0) {
    AddName(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)), names);
  }
  return names;
}

}  // namespace aft::server
