#include "server/http/http_server.h"

#include <chrono>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "server/http/http_session.h"
#include "server/observability/log.h"
#include "server/observability/rate_limit.h"

namespace aft::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// The time from an error until the next connection is accepted.
constexpr std::chrono::milliseconds kAcceptAgain{100};

}  // namespace

void HttpConnections::Post(std::function<void()> work) {
  {
    MutexLock lock(mutex);
    posted.push_back(std::move(work));
    if (std::exchange(runs, true)) return;
  }
  try {
    asio::post(context, [this] { RunPosted(); });
  } catch (const std::exception&) {  // out of memory: the next Post tries again
    MutexLock lock(mutex);
    runs = false;
  }
}

void HttpConnections::RunPosted() {
  {
    MutexLock lock(mutex);
    running.swap(posted);
    runs = false;
  }
  for (const std::function<void()>& work : running) {
    try {
      work();
    } catch (const std::exception& error) {  // out of memory: that connection has ended
      log::Error("http.failed", {{"error", error.what()}});
    }
  }
  running.clear();
}

// Only the server's thread uses it, except for construction, Listen, Stop, Post, CloseAll and port.
class HttpServer::Loop {
 public:
  Loop(HttpHandler& handler, const HttpOptions& options) : connections_{handler, options} {}

  // Throws what the network library throws.
  void Listen(const std::string& host, const std::string& port) {
    tcp::resolver resolver(connections_.context);
    const tcp::endpoint endpoint = resolver.resolve(host, port, tcp::resolver::passive)->endpoint();
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
    port_ = acceptor_.local_endpoint().port();
    connections_.at_loopback = endpoint.address().is_loopback();
    Accept();
  }

  void Run() {
    while (true) {
      try {
        connections_.context.run();
        return;
      } catch (const std::exception& error) {  // out of memory: that connection has ended
        log::Error("http.failed", {{"error", error.what()}});
      }
    }
  }

  void Stop() { connections_.context.stop(); }
  void Post(std::function<void()> work) { connections_.Post(std::move(work)); }
  void BeginLameDuck() { connections_.last_answers = true; }
  void Drain();
  int port() const { return port_; }

  // REQUIRES: the server's thread calls it, or has ended.
  void CloseAll() {
    while (!connections_.sessions.empty()) connections_.sessions.front()->Close();
  }

 private:
  void Accept();
  bool MakeRoom(const std::string& host);

  HttpConnections connections_;
  // Keeps the thread: during a drain there may be only connections that neither read nor write.
  asio::executor_work_guard<asio::io_context::executor_type> work_{
      connections_.context.get_executor()};
  int port_ = 0;
  tcp::acceptor acceptor_{connections_.context};
  asio::steady_timer again_{connections_.context};
  RateLimit accept_errors_{1};
};

bool HttpServer::Loop::MakeRoom(const std::string& host) {
  const auto of_host = connections_.hosts.find(host);
  const bool crowded = of_host != connections_.hosts.end() &&
                       of_host->second >= connections_.options.address_connections;
  if (!crowded && connections_.sessions.size() < connections_.options.connections) return true;
  const auto may_go = [&](const HttpSession* session, bool running) {
    return (!crowded || session->host() == host) && (running || !session->running());
  };
  for (const bool running : {false, true}) {
    if (running && !connections_.options.gives_way) break;
    for (HttpSession* const session : connections_.sessions) {
      if (!may_go(session, running)) continue;
      session->Close();
      return true;
    }
  }
  return false;
}

void HttpServer::Loop::Accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    // Drain has closed the acceptor. A connection that arrived just before that is closed here.
    if (connections_.draining) return;
    if (error) {  // perhaps there is no file descriptor left: try again later
      if (const auto left_out = accept_errors_.Pass(std::chrono::steady_clock::now())) {
        log::Error("server.accept_failed", {{"error", error.message()}, {"left_out", *left_out}});
      }
      again_.expires_after(kAcceptAgain);
      again_.async_wait([this](error_code aborted) {
        if (!aborted) Accept();
      });
      return;
    }
    Accept();
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error || !MakeRoom(HostOf(peer.address()))) return;
    socket.set_option(tcp::no_delay(true), error);
    socket.non_blocking(true, error);
    StartHttpSession(connections_, std::move(socket), peer);
  });
}

void HttpServer::Loop::Drain() {
  connections_.last_answers = connections_.draining = true;
  error_code ignored;
  acceptor_.close(ignored);
  again_.cancel();
  const std::vector<HttpSession*> sessions(connections_.sessions.begin(),
                                           connections_.sessions.end());
  for (HttpSession* const session : sessions) {
    if (session->waiting()) session->Close();
  }
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const std::string& address,
                                                               HttpHandler& handler,
                                                               const HttpOptions& options) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  auto loop = std::make_unique<Loop>(handler, options);
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

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Stop() {
  if (!thread_.joinable()) return;
  loop_->Stop();
  thread_.join();
  loop_->CloseAll();
}

int HttpServer::port() const { return loop_->port(); }

void HttpServer::BeginLameDuck() {
  loop_->Post([loop = loop_.get()] { loop->BeginLameDuck(); });
}

void HttpServer::BeginDrain() {
  loop_->Post([loop = loop_.get()] { loop->Drain(); });
}

void HttpServer::CloseConnections() {
  loop_->Post([loop = loop_.get()] { loop->CloseAll(); });
}

}  // namespace aft::server
