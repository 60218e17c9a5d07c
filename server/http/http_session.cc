#include "server/http/http_session.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "boost/asio/ip/network_v6.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/status.hpp"
#include "boost/beast/http/string_body.hpp"
#include "server/http/http_message.h"
#include "server/http/http_stream.h"

namespace aft::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

// How long a client may take to close after the last answer.
constexpr milliseconds kLinger{1000};

constexpr size_t kReadBytes = 4096;
// kBodyReadBytes and header_bytes together must stay below 64 KiB, because the parser throws if a
// field of a trailer is that long.
constexpr size_t kBodyReadBytes = size_t{32} << 10;

// Splits a request's target, which may be a whole URL (RFC 9112, 3.2.2).
void SetTarget(absl::string_view target, HttpRequest& request) {
  if (const size_t scheme = target.find("://"); scheme < target.find('/')) {
    target = absl::ClippedSubstr(target, target.find_first_of("/?", scheme + 3));
  }
  const size_t query = std::min(target.find('?'), target.size());
  request.path = query == 0 ? "/" : std::string(target.substr(0, query));
  request.query = std::string(absl::ClippedSubstr(target, query + 1));
}

std::string NameOf(const tcp::endpoint& peer) {
  const std::string address = peer.address().to_string();
  return peer.address().is_v6() ? absl::StrCat("ipv6:%5B", address, "%5D:", peer.port())
                                : absl::StrCat("ipv4:", address, ":", peer.port());
}

int StatusOf(error_code error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == http::error::body_limit) return 413;
  return 400;
}

// One connection, and the HttpAnswer of its request. Its pending operations own it, and so does the
// task that Start gave it to.
class Session final : public HttpSession,
                      public HttpAnswer,
                      public std::enable_shared_from_this<Session> {
 public:
  Session(HttpConnections& loop, tcp::socket socket, const tcp::endpoint& peer)
      : loop_(loop),
        stream_(std::move(socket), loop.options.tls ? loop.options.tls().get() : nullptr),
        peer_(NameOf(peer)),
        host_(HostOf(peer.address())) {
    ++loop_.hosts[host_];
    entry_ = loop_.sessions.insert(loop_.sessions.end(), this);
  }
  ~Session() override { Forget(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& host() const override { return host_; }
  bool running() const override { return state_ == State::kRunning; }
  bool waiting() const override { return state_ == State::kHead; }

  void Start() { NextRequest(); }

  void Close() override { Close(/*stuck=*/false); }
  void Close(bool stuck) {
    if (state_ == State::kClosed) return;
    const bool running = state_ == State::kRunning;
    state_ = State::kClosed;
    Forget();
    stream_.Close();
    reading_until_.cancel();
    writing_until_.cancel();
    const std::shared_ptr<HttpTask> task = std::move(task_);
    if (running && task != nullptr) task->Gone(stuck);
    if (std::exchange(writing_, false)) Post([task] { task->Written(); });
  }

  // ---- HttpAnswer.

  void Abort() override { Close(); }

  void Post(std::function<void()> work) override { loop_.Post(std::move(work)); }

  void Send(HttpPage page) override {
    if (state_ != State::kRunning) return;
    // An answer 204 must not have a length (RFC 9110, 8.6).
    const std::string length =
        page.status == 204 ? "" : absl::StrCat("Content-Length: ", page.body.size(), "\r\n");
    // The body is copied, because its string may have as much spare room as it has text.
    std::string text = Head(page, length);
    if (!head_only_) absl::StrAppend(&text, page.body);
    Finish(std::move(text));
  }

  void Begin(HttpPage page) override {
    chunked_ = !old_version_;
    if (old_version_) keep_alive_ = false;  // the end of the connection is that of the answer
    begun_ = Head(page, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  }

  bool Write(absl::string_view part) override {
    if (state_ != State::kRunning) return true;
    out_ = Framed(part, "");
    sent_ = 0;
    const error_code error = SendNow();
    writing_ = error == asio::error::would_block;
    if (writing_) {
      WaitToSend(/*anew=*/true);
    } else {
      out_ = std::string();
      // Later, because Close calls the task, which is in the middle of something.
      if (error) Post([self = shared_from_this()] { self->Close(); });
    }
    return !writing_;
  }

  void End(absl::string_view part) override {
    if (state_ == State::kRunning) Finish(Framed(part, chunked_ ? "0\r\n\r\n" : ""));
  }

 private:
  enum class State { kHead, kBody, kRunning, kLingering, kClosed };
  using Parser = http::request_parser<http::string_body>;

  void Forget() {
    if (!entry_.has_value()) return;
    loop_.sessions.erase(*entry_);
    entry_.reset();
    const auto count = loop_.hosts.find(host_);
    if (--count->second == 0) loop_.hosts.erase(count);
  }

  // ---- Requests.

  // Whether a part of the head is there.
  bool HasBegun() const { return buffer_.size() > 0 || head_bytes_ > 0 || parser_->got_some(); }

  void NextRequest() {
    state_ = State::kHead;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(loop_.options.header_bytes));
    // Otherwise the parser would refuse a length before the handler has seen the head.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    parser_->eager(false);
    head_bytes_ = 0;
    keep_alive_ = head_only_ = old_version_ = chunked_ = false;
    if (buffer_.size() == 0) {
      buffer_ = Buffer();  // an idle connection keeps none
      ReadUntil(first_ ? loop_.options.patience : loop_.options.idle);
      return Read();
    }
    ReadUntil(loop_.options.patience);
    Parse();
  }

  // Closes the connection if the client takes longer than `patience`. A client that has begun to
  // send a request gets a 408 first.
  void ReadUntil(milliseconds patience) {
    reading_until_.expires_after(patience);
    reading_until_.async_wait([self = shared_from_this()](error_code error) {
      const bool over = self->reading_until_.expiry() <= std::chrono::steady_clock::now();
      if (error || !over || (self->state_ != State::kHead && self->state_ != State::kBody)) return;
      const bool idle = self->state_ == State::kHead && !self->HasBegun();
      if (idle) return self->Close();
      self->RefuseHere({.status = 408, .body = "request too slow\n"});
    });
  }

  // Waits for the client's next bytes, without a buffer for them.
  void Read() {
    if (std::exchange(reading_, true)) return;
    stream_.WaitToRead([self = shared_from_this()](error_code error) {
      self->reading_ = false;
      if (self->state_ == State::kClosed) return;
      if (!error) return self->OnReadable();
      self->Close();
    });
  }

  void OnReadable() {
    const bool first_bytes = state_ == State::kHead && !HasBegun();
    const size_t most = state_ == State::kBody ? kBodyReadBytes : kReadBytes;
    error_code error;
    const size_t bytes = stream_.Read(buffer_.prepare(most).data(), most, error);
    if (error == asio::error::would_block) return Read();
    if (error) return Close();
    if (state_ == State::kLingering) return Read();  // what comes now is dropped
    buffer_.commit(bytes);
    if (state_ == State::kRunning) {  // the next request, which waits
      if (buffer_.size() < kReadBytes) Read();
      return;
    }
    if (first_bytes) ReadUntil(loop_.options.patience);
    Parse();
  }

  void Parse() {
    while (true) {
      if (buffer_.size() == 0) return Read();
      error_code error;
      if (state_ == State::kBody) {
        const size_t bytes = parser_->get().body().size() + buffer_.size();
        if (bytes > loop_.options.body_bytes + kBodyReadBytes) return RefuseHere(Plain(413));
        if (const auto page = task_->Expect(bytes)) return Refuse(*page);
        if (IsPartOfLastChunk()) return Read();
      }
      if (state_ == State::kHead && head_bytes_ == 0 && SkipEmptyLine()) return NextRequest();
      const size_t consumed = parser_->put(buffer_.data(), error);
      buffer_.consume(consumed);
      if (state_ == State::kHead) head_bytes_ += consumed;
      if (head_bytes_ > loop_.options.header_bytes) return RefuseHere(Plain(431));
      if (error == http::error::need_more) {
        // In a body, the bytes that are left are the unfinished line before a chunk, or an
        // unfinished trailer.
        if (buffer_.size() > loop_.options.header_bytes) return RefuseHere(Plain(431));
        return Read();
      }
      if (error) return RefuseHere(Plain(StatusOf(error)));
      if (state_ == State::kHead) {
        if (!parser_->is_header_done()) continue;
        if (!TakeHead()) return;
      }
      if (!parser_->is_done()) continue;
      if (parser_->get().body().size() > loop_.options.body_bytes) return RefuseHere(Plain(413));
      return Run();
    }
  }

  // Some clients send an empty line after a body (RFC 9112, 2.2). It is no part of a request, so
  // the connection is idle if nothing follows. Skips one such line before each head.
  bool SkipEmptyLine() {
    constexpr absl::string_view kEmptyLine = "\r\n";
    const auto bytes = buffer_.data();
    if (skipped_line_ ||
        !absl::StartsWith({static_cast<const char*>(bytes.data()), bytes.size()}, kEmptyLine)) {
      return false;
    }
    buffer_.consume(kEmptyLine.size());
    skipped_line_ = true;
    return true;
  }

  // Whether the unread bytes may be a last chunk without its end. A chunked body has at least five
  // bytes more here. Boost 1.74 must not get fewer: having read "0\r\n", it asserts that at least
  // two bytes come at once (boostorg/beast#2861), and the assertion would end the process.
  bool IsPartOfLastChunk() const {
    const auto bytes = buffer_.data();
    return parser_->chunked() && bytes.size() < 5 &&
           absl::StartsWith({static_cast<const char*>(bytes.data()), bytes.size()}, "0\r\n");
  }

  static HttpPage Plain(int status) {
    const auto reason = http::obsolete_reason(static_cast<http::status>(status));
    return {.status = status,
            .body = absl::StrCat(absl::string_view(reason.data(), reason.size()), "\n")};
  }

  // False: the request is refused or answered already.
  bool TakeHead() {
    const auto& head = parser_->get();
    HttpRequest request;
    request.method = std::string(head.method_string());
    request.peer = peer_;
    request.at_loopback = loop_.at_loopback;
    request.certificate_names = stream_.CertificateNames();
    SetTarget({head.target().data(), head.target().size()}, request);
    for (const auto& field : head) {
      request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    }
    first_ = skipped_line_ = false;
    head_only_ = request.method == "HEAD";
    old_version_ = head.version() < 11;
    keep_alive_ = loop_.options.keep_alive && head.keep_alive();
    // Two readers of such a request might not agree on where it ends, or for which host it is
    // (RFC 9112, sections 3.2 and 6.1).
    const bool chunked = absl::EqualsIgnoreCase(request.Header("Transfer-Encoding"), "chunked");
    const size_t hosts = request.Count("Host");
    if ((request.Count("Transfer-Encoding") > 0 && (!chunked || old_version_)) || hosts > 1 ||
        (hosts == 0 && !old_version_)) {
      keep_alive_ = false;
      RefuseHere(Plain(400));
      return false;
    }
    auto answer = loop_.handler.Handle(request);
    if (auto* const page = std::get_if<HttpPage>(&answer)) {
      Refuse(std::move(*page));
      return false;
    }
    task_ = std::move(std::get<std::shared_ptr<HttpTask>>(answer));
    state_ = State::kBody;
    ReadUntil(loop_.options.body_patience);
    const size_t length = parser_->content_length().value_or(0);
    if (length > loop_.options.body_bytes) {
      RefuseHere(Plain(413));
      return false;
    }
    if (const auto page = task_->Expect(length)) {
      Refuse(*page);
      return false;
    }
    if (absl::EqualsIgnoreCase(request.Header("Expect"), "100-continue") && buffer_.size() == 0 &&
        !parser_->is_done() && !old_version_) {
      error_code error;
      static constexpr absl::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      if (stream_.Write(kContinue, error) < kContinue.size()) {  // few bytes: something is wrong
        Close();
        return false;
      }
    }
    return true;
  }

  void Run() {
    state_ = State::kRunning;
    reading_until_.cancel();
    std::string body = std::move(parser_->get().body());
    parser_.reset();
    if (buffer_.size() == 0) buffer_ = Buffer();  // it may have grown to kBodyReadBytes
    if (buffer_.size() < kReadBytes) Read();      // hears of a client that leaves
    const std::shared_ptr<HttpTask> task = task_;
    task->Start(std::move(body), shared_from_this());
  }

  // Refuses a request that the handler has not refused. Sends the handler's own page for this
  // status or, if it has none, `page`.
  void RefuseHere(HttpPage page) {
    const int status = page.status;
    if (task_ != nullptr) {
      page = task_->Refused(status);
    } else if (std::optional<HttpPage> own = loop_.handler.HeadRefused(status, peer_)) {
      page = *std::move(own);
    }
    page.status = status;
    Refuse(std::move(page));
  }

  // Answers a request whose body was not read, or bytes that are not a request.
  void Refuse(HttpPage page) {
    const bool bodyless = parser_->is_header_done() && parser_->is_done();
    keep_alive_ = keep_alive_ && bodyless;
    task_.reset();
    state_ = State::kRunning;
    reading_until_.cancel();
    Send(std::move(page));
  }

  // ---- Answers.

  std::string Head(const HttpPage& page, absl::string_view length) {
    keep_alive_ = keep_alive_ && !loop_.last_answers;
    return HeadOf(page, keep_alive_, length);
  }

  // Returns the next bytes of an answer in parts: its head if that was not sent yet, `part` as a
  // chunk, and `end`.
  std::string Framed(absl::string_view part, absl::string_view end) {
    const std::string head = std::exchange(begun_, "");
    if (!chunked_ || part.empty()) return absl::StrCat(head, part, end);
    return absl::StrCat(head, absl::Hex(part.size()), "\r\n", part, "\r\n", end);
  }

  // Sends the last part.
  void Finish(std::string text) {
    out_ = std::move(text);
    sent_ = 0;
    SendMore(/*first=*/true);
  }

  // Sends as much of out_ as the connection accepts. Returns would_block if a part of it is left.
  error_code SendNow() {
    error_code error;
    while (sent_ < out_.size() && !error) {
      sent_ += stream_.Write(absl::string_view(out_).substr(sent_), error);
    }
    return error;
  }

  void SendMore(bool first) {
    const size_t before = sent_;
    const error_code error = SendNow();
    if (error == asio::error::would_block) return WaitToSend(first || sent_ > before);
    // The loop calls this, so that many answers do not nest on the stack.
    asio::post(loop_.context, [self = shared_from_this(), error] {
      if (self->state_ == State::kClosed) return;
      return error ? self->Close() : self->Sent();
    });
  }

  // `anew`: from now on the client has the whole `patience` to take more.
  void WaitToSend(bool anew) {
    if (anew) {
      writing_until_.expires_after(loop_.options.patience);
      writing_until_.async_wait([self = shared_from_this()](error_code error) {
        const bool over = self->writing_until_.expiry() <= std::chrono::steady_clock::now();
        // Another handler may have sent the rest, with Sent still to come.
        if (!error && over && self->sent_ < self->out_.size()) self->Close(/*stuck=*/true);
      });
    }
    stream_.WaitToWrite([self = shared_from_this()](error_code error) {
      if (self->state_ == State::kClosed) return;
      return error ? self->Close() : self->SendMore(/*first=*/false);
    });
  }

  void Sent() {
    writing_until_.cancel();
    out_ = std::string();
    if (!std::exchange(writing_, false)) return Complete();
    const std::shared_ptr<HttpTask> task = task_;
    task->Written();
  }

  // The answer is sent.
  void Complete() {
    if (const std::shared_ptr<HttpTask> task = std::move(task_)) task->Done();
    if (keep_alive_ && !loop_.draining) return NextRequest();
    // If the connection were closed while the client still sends, for example the body of a POST,
    // the client might never see the answer.
    state_ = State::kLingering;
    stream_.Shutdown();
    buffer_ = Buffer();
    writing_until_.expires_after(kLinger);
    writing_until_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->Close();
    });
    Read();
  }

  using Buffer = boost::beast::flat_buffer;

  HttpConnections& loop_;
  HttpStream stream_;
  const std::string peer_;
  const std::string host_;
  std::optional<std::list<HttpSession*>::iterator> entry_;
  State state_ = State::kHead;
  bool first_ = true;     // no request has come yet
  bool reading_ = false;  // Read waits
  Buffer buffer_;
  std::optional<Parser> parser_;
  std::shared_ptr<HttpTask> task_;
  size_t head_bytes_ = 0;
  bool skipped_line_ = false;  // an empty line before the head
  bool keep_alive_ = false;    // of the request that is answered
  bool head_only_ = false;     // likewise
  bool old_version_ = false;   // likewise: HTTP/1.0
  bool chunked_ = false;       // its answer
  std::string begun_;          // the head of an answer in parts, until the first of them
  std::string out_;            // is being sent
  size_t sent_ = 0;            // of its bytes
  bool writing_ = false;       // Write has returned false; otherwise out_ is the last part
  asio::steady_timer reading_until_{stream_.executor()};
  asio::steady_timer writing_until_{stream_.executor()};
};

}  // namespace

std::string HostOf(const asio::ip::address& address) {
  if (!address.is_v6() || address.to_v6().is_v4_mapped()) return address.to_string();
  return asio::ip::make_network_v6(address.to_v6(), 64).canonical().to_string();
}

void StartHttpSession(HttpConnections& connections, tcp::socket socket, const tcp::endpoint& peer) {
  std::make_shared<Session>(connections, std::move(socket), peer)->Start();
}

}  // namespace aft::server
