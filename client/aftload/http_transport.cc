#include <openssl/ssl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "boost/asio.hpp"
#include "boost/asio/ssl.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http.hpp"
#include "client/aftload/http_events.h"
#include "client/aftload/transport.h"
#include "client/lib/error_details.h"

namespace aft::client {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = size_t{16} << 10;

// A connection, without or with TLS.
class HttpConnection {
 public:
  // `tls`: null for a bare connection. `host`: the name that the server's certificate must have.
  HttpConnection(asio::io_context& context, asio::ssl::context* tls, std::string host)
      : socket_(context) {
    if (tls == nullptr) return;
    tls_.emplace(socket_, *tls).set_verify_callback(asio::ssl::host_name_verification(host));
    error_code not_an_address;
    asio::ip::make_address(host, not_an_address);
    if (!not_an_address) return;  // addresses are not announced
    SSL_ctrl(tls_->native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
             host.data());
  }

  tcp::socket& socket() { return socket_; }
  // Returns null for a connection without TLS.
  asio::ssl::stream<tcp::socket&>* tls() { return tls_.has_value() ? &*tls_ : nullptr; }
  // Calls `use` with the stream to read and write.
  template <typename Use>
  void With(const Use& use) {
    tls_.has_value() ? use(*tls_) : use(socket_);
  }

 private:
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
};

// The objects that all requests to one target share. Once the loop has begun, only its thread uses
// them.
struct HttpLoop {
  std::unique_ptr<HttpConnection> Open() {
    return std::make_unique<HttpConnection>(context, tls.has_value() ? &*tls : nullptr, host);
  }

  std::string host;
  std::string head;  // of each request, up to the length of its body
  asio::io_context context{1};
  std::optional<asio::ssl::context> tls;  // unset: connections are bare
  std::vector<tcp::endpoint> endpoints;
  std::vector<std::unique_ptr<HttpConnection>> idle;  // connections that are kept alive
};

// One request and its answer, on a connection that no other request uses meanwhile. Only the loop's
// thread uses it.
class HttpExchange final : public std::enable_shared_from_this<HttpExchange> {
 public:
  HttpExchange(HttpLoop& loop, const std::string& body, GenerateListener& listener,
               const CallOptions& call)
      : loop_(loop),
        text_(absl::StrCat(loop.head, body.size(), "\r\n\r\n", body)),
        listener_(listener),
        deadline_(call.deadline.value_or(milliseconds(0))),
        cancel_(call.cancel) {}

  void Start() {
    if (deadline_.count() > 0) {
      expiry_.expires_after(deadline_);
      expiry_.async_wait([self = shared_from_this()](error_code error) {
        if (!error) self->Fail(absl::DeadlineExceededError("deadline exceeded"));
      });
    }
    // The token may be destroyed once this request has ended, so the scope ends with the request.
    scope_.emplace(cancel_, [&context = loop_.context, weak = weak_from_this()] {
      asio::post(context, [weak] {
        if (const auto self = weak.lock()) self->Cancel();
      });
    });
    if (loop_.idle.empty()) return Connect();
    connection_ = std::move(loop_.idle.back());
    loop_.idle.pop_back();
    reused_ = true;
    Write();
  }

 private:
  void Connect() {
    reused_ = false;
    connection_ = loop_.Open();
    asio::async_connect(connection_->socket(), loop_.endpoints,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          auto* const tls = self->connection_->tls();
                          if (error || tls == nullptr) return self->OnConnected(error);
                          tls->async_handshake(
                              asio::ssl::stream_base::client,
                              [self](error_code failed) { self->OnConnected(failed); });
                        });
  }

  void OnConnected(error_code error) {
    if (ended_) return;
    if (!error) return Write();
    Fail(absl::UnavailableError(error.message()), ErrorOrigin::kUnreachable);
  }

  void Write() {
    error_code ignored;
    connection_->socket().set_option(tcp::no_delay(true), ignored);
    parser_.emplace();
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    parser_->eager(true);
    connection_->With([this](auto& stream) {
      asio::async_write(stream, asio::buffer(text_),
                        [self = shared_from_this()](error_code error, size_t /*bytes*/) {
                          if (!self->ended_) return error ? self->Break(error) : self->Read();
                        });
    });
  }

  void Read() {
    connection_->With([this](auto& stream) {
      stream.async_read_some(buffer_.prepare(kReadBytes),
                             [self = shared_from_this()](error_code error, size_t bytes) {
                               if (self->ended_) return;
                               self->buffer_.commit(bytes);
                               self->heard_ |= bytes > 0;
                               self->OnRead(error);
                             });
    });
  }

  // Beast's own reading would wait for the next chunk before it delivers one.
  void OnRead(error_code error) {
    if (error == asio::error::eof && parser_->got_some()) {
      error = {};
      parser_->put_eof(error);
    }
    while (!error && buffer_.size() > 0 && !parser_->is_done()) {
      buffer_.consume(parser_->put(buffer_.data(), error));
    }
    if (error && error != http::error::need_more) return Break(error);
    Deliver();
  }

  void Deliver() {
    milliseconds pause(0);
    std::string& body = parser_->get().body();
    if (parser_->is_header_done() && parser_->get().result_int() == 200) {
      events_.Feed({body.data(), body.size()}, [&](const v1::GenerateResponse& event) {
        pause += listener_.OnEvent(event).pause;  // it never cancels: see ConnectHttp
      });
      body.clear();
    }
    if (pause.count() == 0) return GoOn();
    pause_.expires_after(pause);
    pause_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->ended_) self->GoOn();
    });
  }

  void GoOn() { parser_->is_done() ? End(Result()) : Read(); }

  // REQUIRES: the answer is complete.
  absl::Status Result() const {
    const auto& answer = parser_->get();
    if (answer.result_int() == 200) return events_.End();
    ErrorDetails details = {.may_retry = answer["x-should-retry"] != "false"};
    // If the answer has both headers, the second one counts, because it is more exact.
    for (const auto& [name, unit] : {std::pair("Retry-After", milliseconds(1000)),
                                     std::pair("retry-after-ms", milliseconds(1))}) {
      const auto text = answer[name];
      int64_t count = 0;
      if (absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &count) && count >= 0) {
        details.retry_after = std::min<int64_t>(count, kLongestRetryAfter / unit) * unit;
      }
    }
    return HttpStatus(static_cast<int>(answer.result_int()), answer.body(), details);
  }

  void Break(error_code error) {
    // The server may close an idle connection just as a request is sent on it.
    if (reused_ && !heard_) return Connect();
    Fail(absl::UnavailableError(error.message()), ErrorOrigin::kConnectionLost);
  }

  void Cancel() { Fail(absl::CancelledError("cancelled by the caller"), ErrorOrigin::kCaller); }

  // The server notices the failure because the connection closes.
  void Fail(absl::Status status, ErrorOrigin origin = ErrorOrigin::kServer) {
    if (ended_) return;
    SetErrorDetails({.origin = origin, .received_tokens = events_.texts()}, status);
    error_code ignored;
    if (connection_ != nullptr) connection_->socket().close(ignored);
    End(status);
  }

  void End(const absl::Status& status) {
    ended_ = true;
    expiry_.cancel();
    pause_.cancel();
    scope_.reset();
    const bool open = connection_ != nullptr && connection_->socket().is_open();
    if (open && parser_->keep_alive() && buffer_.size() == 0) {
      loop_.idle.push_back(std::move(connection_));
    }
    listener_.OnEnd(status);
  }

  HttpLoop& loop_;
  const std::string text_;
  GenerateListener& listener_;
  const milliseconds deadline_;
  CancelToken* const cancel_;
  std::unique_ptr<HttpConnection> connection_;
  asio::steady_timer expiry_{loop_.context};
  asio::steady_timer pause_{loop_.context};
  boost::beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;
  EventReader events_;
  std::optional<CancelScope> scope_;
  bool reused_ = false;  // an earlier request used this connection
  bool heard_ = false;   // a byte of the answer has arrived
  bool ended_ = false;
};

// INVALID_ARGUMENT: an authority, a certificate or a key is not valid PEM.
absl::StatusOr<asio::ssl::context> MakeTls(const ClientTls& tls) {
  asio::ssl::context context(asio::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  context.set_verify_mode(asio::ssl::verify_peer);
  error_code error;
  if (tls.authorities.empty()) {
    context.set_default_verify_paths(error);
  } else {
    context.add_certificate_authority(asio::buffer(tls.authorities), error);
  }
  if (!error && !tls.certificate.empty()) {
    context.use_certificate_chain(asio::buffer(tls.certificate), error);
    if (!error) context.use_private_key(asio::buffer(tls.key), asio::ssl::context::pem, error);
  }
  if (error) return CallerError(absl::StrCat("TLS: ", error.message()));
  return context;
}

class HttpTransport final : public Transport {
 public:
  ~HttpTransport() override {
    loop_.context.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Connect(const ClientOptions& target) {
    const std::string& address = target.address;
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos || address.find_first_of("/,") != std::string::npos) {
      return CallerError(absl::StrCat(address, " is not HOST:PORT, which --http needs"));
    }
    loop_.head = absl::StrCat(
        "POST /v1/completions HTTP/1.1\r\nHost: ", address, "\r\n",
        target.token.empty() ? "" : absl::StrCat("Authorization: Bearer ", target.token, "\r\n"),
        "Content-Type: application/json\r\nContent-Length: ");
    const absl::string_view host = absl::string_view(address).substr(0, colon);
    loop_.host = std::string(absl::StripSuffix(absl::StripPrefix(host, "["), "]"));
    if (target.tls.has_value()) {
      AFT_ASSIGN_OR_RETURN(loop_.tls, MakeTls(*target.tls));
    }
    error_code error;
    for (const auto& found :
         tcp::resolver(loop_.context).resolve(loop_.host, address.substr(colon + 1), error)) {
      loop_.endpoints.push_back(found.endpoint());
    }
    if (!error) error = ConnectFirst();
    if (error) {
      absl::Status status = absl::UnavailableError(absl::StrCat(address, ": ", error.message()));
      SetErrorDetails({.origin = ErrorOrigin::kUnreachable}, status);
      return status;
    }
    thread_ = std::thread([this] { loop_.context.run(); });
    return absl::OkStatus();
  }

  void StartGenerate(const v1::GenerateRequest& request, GenerateListener& listener,
                     const CallOptions& call) override {
    auto exchange = std::make_shared<HttpExchange>(loop_, CompletionBody(request), listener, call);
    asio::post(loop_.context, [exchange = std::move(exchange)] { exchange->Start(); });
  }

 private:
  error_code ConnectFirst() {
    std::unique_ptr<HttpConnection> connection = loop_.Open();
    error_code error;
    asio::connect(connection->socket(), loop_.endpoints, error);
    if (!error && connection->tls() != nullptr) {
      connection->tls()->handshake(asio::ssl::stream_base::client, error);
    }
    if (!error) loop_.idle.push_back(std::move(connection));
    return error;
  }

  HttpLoop loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.context.get_executor()};
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectHttp(const ClientOptions& target) {
  auto transport = std::make_unique<HttpTransport>();
  AFT_RETURN_IF_ERROR(transport->Connect(target));
  return transport;
}

}  // namespace aft::client
