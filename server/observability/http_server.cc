#include "server/observability/http_server.h"

#include <exception>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "server/observability/gzip.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kGzipFrom = 1024;  // bytes; less is a packet anyway

// How long a client may take to close after the answer, and how soon after an error the next
// connection is accepted.
constexpr milliseconds kLinger{1000};
constexpr milliseconds kAcceptAgain{100};

// The path of a request's target, which may be a whole URL (RFC 9112, 3.2.2).
std::string PathOf(absl::string_view target) {
  if (const size_t scheme = target.find("://"); scheme < target.find('/')) {
    const size_t path = target.find('/', scheme + 3);
    target = path == absl::string_view::npos ? "/" : target.substr(path);
  }
  return std::string(target.substr(0, target.find('?')));
}

}  // namespace

// The thread's own, all but construction, port and Stop.
class HttpServer::Loop {
 public:
  Loop(HttpPages pages, milliseconds patience) : pages_(std::move(pages)), patience_(patience) {}

  // Throws what the network library throws.
  void Listen(const std::string& host, const std::string& port) {
    tcp::resolver resolver(context_);
    const tcp::endpoint endpoint = resolver.resolve(host, port, tcp::resolver::passive)->endpoint();
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
    port_ = acceptor_.local_endpoint().port();
    Accept();
  }

  void Run() {
    while (true) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {  // out of memory: that connection has ended
        log::Error("http.failed", {{"error", error.what()}});
      }
    }
  }

  void Stop() { context_.stop(); }
  int port() const { return port_; }

 private:
  class Session;

  void Accept();
  http::response<http::string_body> Answer(const http::request<http::empty_body>& request) const;
  HttpPage Find(const http::request<http::empty_body>& request) const;

  const HttpPages pages_;
  const milliseconds patience_;
  std::list<Session*> sessions_;  // the oldest first
  int port_ = 0;
  asio::io_context context_{1};  // what waits in it, sessions among them, goes first
  tcp::acceptor acceptor_{context_};
  asio::steady_timer again_{context_};
};

// One connection: a request, its answer. Owned by what it waits for.
class HttpServer::Loop::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Loop& loop, tcp::socket socket) : loop_(loop), stream_(std::move(socket)) {
    parser_.header_limit(kMaxHeaderBytes);
    entry_ = loop_.sessions_.insert(loop_.sessions_.end(), this);
  }
  ~Session() { Forget(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void Start() {
    stream_.expires_after(loop_.patience_);
    http::async_read_header(
        stream_, buffer_, parser_,
        [self = shared_from_this()](error_code error, size_t) { self->Respond(error); });
  }

  void Close() {
    Forget();
    stream_.close();
  }

 private:
  void Forget() {
    if (entry_.has_value()) loop_.sessions_.erase(*entry_);
    entry_.reset();
  }

  void Respond(error_code error) {
    const http::request<http::empty_body>& request = parser_.get();
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      response_.result(http::status::request_header_fields_too_large);
    } else if (error == http::error::end_of_stream || error == http::error::partial_message) {
      return;
    } else if (error.category() == make_error_code(http::error::bad_method).category()) {
      response_.result(http::status::bad_request);
    } else if (error) {
      return;  // too slow, or gone
    } else {
      response_ = loop_.Answer(request);
    }
    response_.keep_alive(false);
    if (!response_.has_content_length()) response_.prepare_payload();
    stream_.expires_after(loop_.patience_);
    http::async_write(stream_, response_, [self = shared_from_this()](error_code failed, size_t) {
      if (!failed) self->Linger();
    });
  }

  // Closed while the client still sends, as the body of a POST, it might never see the answer.
  void Linger() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kLinger);
    ReadOn();
  }
  void ReadOn() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kMaxHeaderBytes),
                            [self = shared_from_this()](error_code error, size_t) {
                              if (!error) self->ReadOn();
                            });
  }

  Loop& loop_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{2 * kMaxHeaderBytes};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
  std::optional<std::list<Session*>::iterator> entry_;
};

void HttpServer::Loop::Accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (error) {  // no file descriptor, perhaps: somebody else's trouble, which passes
      again_.expires_after(kAcceptAgain);
      again_.async_wait([this](error_code) { Accept(); });
      return;
    }
    Accept();
    if (sessions_.size() == kConnections) sessions_.front()->Close();
    std::make_shared<Session>(*this, std::move(socket))->Start();
  });
}

HttpPage HttpServer::Loop::Find(const http::request<http::empty_body>& request) const {
  const absl::string_view target(request.target().data(), request.target().size());
  const auto found = pages_.find(PathOf(target));
  if (found == pages_.end()) {
    const auto name = [](std::string* out, const auto& page) { out->append(page.first); };
    return {.status = 404,
            .body = absl::StrCat("not found; there are ", absl::StrJoin(pages_, " ", name), "\n")};
  }
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    return {.status = 405, .body = "GET or HEAD\n", .headers = {{"Allow", "GET, HEAD"}}};
  }
  try {
    return found->second();
  } catch (const std::exception& error) {  // out of memory
    log::Error("http.failed", {{"path", found->first}, {"error", error.what()}});
    return {.status = 500, .body = "internal error\n"};
  }
}

http::response<http::string_body> HttpServer::Loop::Answer(
    const http::request<http::empty_body>& request) const {
  HttpPage page = Find(request);
  http::response<http::string_body> response;
  response.result(static_cast<unsigned>(page.status));
  response.set(http::field::content_type, page.content_type);
  response.set(http::field::cache_control, "no-store");
  response.set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'");
  response.set("Cross-Origin-Resource-Policy", "same-origin");
  response.set("Referrer-Policy", "no-referrer");
  response.set("X-Content-Type-Options", "nosniff");
  response.set("X-Frame-Options", "DENY");
  response.set(http::field::vary, "Accept-Encoding");
  for (const auto& [name, value] : page.headers) response.set(name, value);
  const auto accepted = request[http::field::accept_encoding];
  if (page.body.size() >= kGzipFrom && AcceptsGzip({accepted.data(), accepted.size()})) {
    if (std::optional<std::string> packed = Gzip(page.body)) {
      page.body = *std::move(packed);
      response.set(http::field::content_encoding, "gzip");
    }
  }
  response.content_length(page.body.size());
  if (request.method() != http::verb::head) response.body() = std::move(page.body);
  return response;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const std::string& address,
                                                               HttpPages pages,
                                                               milliseconds patience) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  auto loop = std::make_unique<Loop>(std::move(pages), patience);
  try {
    loop->Listen(host, address.substr(colon + 1));
  } catch (const boost::system::system_error& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", error.code().message()));
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(loop)));
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop)
    : loop_(std::move(loop)), thread_([this] { loop_->Run(); }) {}

HttpServer::~HttpServer() {
  loop_->Stop();
  thread_.join();
}

int HttpServer::port() const { return loop_->port(); }

}  // namespace aft::server
