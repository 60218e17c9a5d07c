#include "tests/support/tls.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <csignal>

#include "base/check.h"

namespace aft {
namespace {

std::shared_ptr<BIO> InMemory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

std::shared_ptr<X509> ReadCertificate(const std::string& text) {
  return {PEM_read_bio_X509(InMemory(text).get(), nullptr, nullptr, nullptr), &X509_free};
}

}  // namespace

TlsConnection::TlsConnection(const std::string& address, const Certificate& authority,
                             const Certificate& own, const std::string& protocol,
                             int receive_buffer)
    : TcpConnection(address, receive_buffer), tls_([&] {
        const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
        SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
        X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()),
                            ReadCertificate(authority.certificate).get());
        if (!own.key.empty()) {
          const std::shared_ptr<EVP_PKEY> key(
              PEM_read_bio_PrivateKey(InMemory(own.key).get(), nullptr, nullptr, nullptr),
              &EVP_PKEY_free);
          SSL_CTX_use_certificate(context.get(), ReadCertificate(own.certificate).get());
          AFT_CHECK(SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1);
        }
        return std::shared_ptr<SSL>(SSL_new(context.get()), &SSL_free);
      }()) {
  signal(SIGPIPE, SIG_IGN);
  if (!protocol.empty()) {
    const std::string list = static_cast<char>(protocol.size()) + protocol;
    SSL_set_alpn_protos(tls_.get(), reinterpret_cast<const unsigned char*>(list.data()),
                        static_cast<unsigned>(list.size()));
  }
  SSL_set_fd(tls_.get(), fd());
  SSL_connect(tls_.get());
}

TlsConnection::~TlsConnection() = default;

bool TlsConnection::TrySend(const std::string& text) const {
  return SSL_write(tls_.get(), text.data(), static_cast<int>(text.size())) > 0;
}

void TlsConnection::UpdateKey() const {
  SSL_key_update(tls_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  SSL_do_handshake(tls_.get());
}

long TlsConnection::Receive(void* data, size_t size) const {
  return SSL_read(tls_.get(), data, static_cast<int>(size));
}

}  // namespace aft
