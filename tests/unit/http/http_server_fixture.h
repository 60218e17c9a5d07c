#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "openssl/types.h"
#include "server/admission/tls_context.h"
#include "server/http/http_server.h"
#include "tests/support/certificates.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/support/tls.h"

namespace aft::server {

inline constexpr size_t kMostBody = 1000;
inline constexpr std::chrono::milliseconds kPatient = std::chrono::hours(1);

// Has a letter for each event of a request: started (s), part written (w), done (d), gone
// (g), stuck (k), or refused by the server with 408 (l), 413 (m) or 400 (n). Heads that the server
// refused: 408 (L), 431 (M), 400 (N). For /pieces, each announcement of bytes of the body (e).
class Events {
 public:
  void Add(char event) {
    MutexLock lock(mutex_);
    events_ += event;
    changed_.NotifyAll();
  }
  // Waits until there are `count` events.
  std::string WaitFor(size_t count) {
    MutexLock lock(mutex_);
    while (events_.size() < count) changed_.Wait(mutex_);
    return events_;
  }

  std::promise<std::shared_ptr<HttpAnswer>> given;  // the begun answer to a request to /given

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string events_ ABSL_GUARDED_BY(mutex_);
};

// Answers by the path: /echo with the body, /parts in two parts, /hold when it is told to, /large
// with more than sockets hold, /given with what the test sends. /deny refuses a body of more than
// ten bytes. /order and /pieces do the same as /echo. The event of a start of /order is the first
// byte of the body. Each announcement of more of a body to /pieces is an event as well.
class TestTask final : public HttpTask, public std::enable_shared_from_this<TestTask> {
 public:
  // `held`: the threads that answer requests to /hold, once `go` is ready.
  TestTask(std::string path, Events& events, std::shared_future<void> go,
           std::vector<std::thread>& held)
      : path_(std::move(path)), events_(events), go_(std::move(go)), held_(held) {}

  std::optional<HttpPage> Expect(size_t bytes) override {
    if (path_ == "/pieces") events_.Add('e');
    if (path_ == "/deny" && bytes > 10) return HttpPage{.status = 429, .body = "too much\n"};
    return std::nullopt;
  }
  HttpPage Refused(int status) override {
    events_.Add(status == 408 ? 'l' : status == 413 ? 'm' : 'n');
    return {.body = "refused\n"};
  }
  void Start(std::string body, std::shared_ptr<HttpAnswer> answer) override {
    events_.Add(path_ == "/order" ? body[0] : 's');
    if (path_ == "/hold") {
      held_.emplace_back([answer, go = go_] {
        go.wait();
        answer->Post([answer] { answer->Send({.body = "held\n"}); });
      });
      return;
    }
    if (path_ != "/parts" && path_ != "/large" && path_ != "/given") {
      return answer->Send({.body = body});
    }
    answer->Begin({.content_type = "text/event-stream"});
    if (path_ == "/given") return events_.given.set_value(answer);
    answer_ = answer;
    if (answer->Write(path_ == "/parts" ? body : std::string(size_t{8} << 20, 'x'))) Written();
  }
  void Written() override {
    events_.Add('w');
    answer_->End("end");
  }
  void Done() override { events_.Add('d'); }
  void Gone(bool stuck) override { events_.Add(stuck ? 'k' : 'g'); }

 private:
  const std::string path_;
  Events& events_;
  const std::shared_future<void> go_;
  std::vector<std::thread>& held_;
  std::shared_ptr<HttpAnswer> answer_;  // in parts
};

class TestHandler final : public HttpHandler {
 public:
  std::variant<HttpPage, std::shared_ptr<HttpTask>> Handle(const HttpRequest& request) override {
    if (request.path == "/page") return HttpPage{.body = "page\n"};
    if (request.path == "/wait") {  // holds the server's thread
      waiting.set_value();
      may_go_.wait();
      return HttpPage();
    }
    return std::make_shared<TestTask>(request.path, events, may_go_, held);
  }

  std::optional<HttpPage> HeadRefused(int status, const std::string& peer) override {
    EXPECT_THAT(peer, testing::StartsWith("ipv4:127.0.0.1:"));
    events.Add(status == 408 ? 'L' : status == 431 ? 'M' : 'N');
    return std::nullopt;
  }

  Events events;
  std::promise<void> go;  // lets requests to /hold and /wait continue
  std::promise<void> waiting;
  std::vector<std::thread> held;

 private:
  const std::shared_future<void> may_go_ = go.get_future().share();
};

// The parameter says whether the connection is under TLS.
class HttpServerTest : public testing::TestWithParam<bool> {
 protected:
  ~HttpServerTest() override {
    for (std::thread& thread : handler_.held) thread.join();
  }
  void Start(HttpOptions options = {}) {
    options.keep_alive = true;
    options.gives_way = false;
    if (options.body_bytes == 0) options.body_bytes = kMostBody;
    if (GetParam()) {
      options.tls = [context = MakeTls()] { return context; };
    }
    server_.reset();
    auto created = HttpServer::Create("127.0.0.1:0", handler_, options);
    ASSERT_TRUE(created.ok()) << created.status();
    server_ = *std::move(created);
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }

  std::unique_ptr<TcpConnection> Connect(int receive_buffer = 0) const {
    if (!GetParam()) return std::make_unique<TcpConnection>(address_, receive_buffer);
    return std::make_unique<TlsConnection>(address_, authority_, Certificate(), "http/1.1",
                                           receive_buffer);
  }

  static std::string Post(const std::string& path, const std::string& body,
                          const std::string& more = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: a\r\n" + more +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  // Sends a request, and returns its answer in parts.
  std::shared_ptr<HttpAnswer> AnswerTo(const TcpConnection& connection) {
    connection.Send(Post("/given", "", "Connection: close\r\n"));
    return handler_.events.given.get_future().get();
  }

  std::shared_ptr<SSL_CTX> MakeTls() const {
    const TempFolder folder;
    const Certificate own = MakeCertificate(authority_, "localhost");
    TlsConfig files;
    files.cert_file = folder.File("cert.pem");
    files.key_file = folder.File("key.pem");
    WriteBytes(files.cert_file, own.certificate);
    WriteBytes(files.key_file, own.key);
    return *MakeTlsContext(files);
  }

  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
  std::string address_;
  const Certificate authority_ = MakeAuthority("test");
};

}  // namespace aft::server
