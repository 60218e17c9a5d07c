#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "openssl/types.h"
#include "server/http/http_message.h"

namespace aft::server {

// The way back to the client of one request. Of the server's thread, but for Post.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  // Runs `work` on the server's thread, unless the server is stopped before. Any thread may call
  // it, as long as the server is there.
  virtual void Post(std::function<void()> work) = 0;

  // Answers with all of it.
  virtual void Send(HttpPage page) = 0;

  // These answer in parts: the head (`page` has no body), any number of parts one after the other,
  // of which the next one may be given when `written` is called, and the end. `written` is called
  // where the client is gone, too.
  virtual void Begin(HttpPage page) = 0;
  virtual void Write(std::string part, std::function<void()> written) = 0;
  virtual void End() = 0;
  // Closes the connection amid the answer.
  virtual void Abort() = 0;
};

// A request whose body is still to come, and what answers it. The server's thread makes all calls,
// and holds it until the answer is sent or the client is gone.
class HttpTask {
 public:
  virtual ~HttpTask() = default;

  // The body will have `bytes` at least, which are not there yet. A page: what is said instead.
  virtual std::optional<HttpPage> Expect(size_t bytes) = 0;
  // The server has refused the body by itself, with this status: 408, it comes too slowly; 413, it
  // is too large; 400, it is not valid HTTP. Start is never called.
  virtual void Refused(int status) = 0;
  // All of it is there. `answer` is used once: by Send, or by Begin.
  virtual void Start(std::string body, std::shared_ptr<HttpAnswer> answer) = 0;
  // All of the answer is with the client.
  virtual void Done() = 0;
  // The client has closed the connection before the answer was complete, or does not read it
  // (`stuck`). Nothing that is given to `answer` from now on is sent.
  virtual void Gone(bool stuck) = 0;
};

// What a server answers with. The server's thread makes all calls.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // The head of a request is there: a page, which is sent without a look at the body, or what takes
  // the body.
  virtual std::variant<HttpPage, std::shared_ptr<HttpTask>> Handle(const HttpRequest& request) = 0;
  // The server has refused the head of a request by itself, with this status: 408, it comes too
  // slowly; 431, it is too large; 400, it is not valid HTTP. `peer` is that of HttpRequest.
  virtual void HeadRefused(int /*status*/, const std::string& /*peer*/) {}
};

struct HttpOptions {
  // Connections at a time. One more closes the oldest that has no request under way; where each has
  // one, the new connection is closed, or with `gives_way` the oldest.
  size_t connections = 64;
  size_t address_connections = 64;  // the same of one address
  bool gives_way = true;
  bool keep_alive = false;  // else each answer ends its connection
  size_t header_bytes = 8192;
  size_t body_bytes = 0;  // most of a request
  // Longest that the head of a request, and later its body, may take to arrive, and that any part
  // of the answer may take to be read.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
  std::chrono::milliseconds body_patience = std::chrono::seconds(60);
  std::chrono::milliseconds idle = std::chrono::seconds(75);  // between two requests
  // What a new connection speaks TLS with; null: connections are bare. Called on the server's
  // thread. The process must ignore SIGPIPE.
  std::function<std::shared_ptr<SSL_CTX>()> tls = nullptr;
};

}  // namespace aft::server
