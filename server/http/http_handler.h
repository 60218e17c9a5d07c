#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "openssl/types.h"
#include "server/http/http_message.h"

namespace aft::server {

// Sends the answer to one request. Only the server's thread may use it, except for Post.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  // Runs `work` on the server's thread, unless the server is stopped before that. Any thread may
  // call this until the server is destroyed.
  virtual void Post(std::function<void()> work) = 0;

  // Sends a whole answer.
  virtual void Send(HttpPage page) = 0;

  // These three send an answer in parts. Begin gives the head, which is sent with the first part;
  // `page` has no body. End sends the last part.
  virtual void Begin(HttpPage page) = 0;
  // Sends one more part. Returns true if the connection has taken all of it, or if the client is
  // gone. Otherwise the next Write or End has to wait until HttpTask::Written is called.
  virtual bool Write(absl::string_view part) = 0;
  virtual void End(absl::string_view part) = 0;
  // Closes the connection in the middle of the answer.
  virtual void Abort() = 0;
};

// Receives the body of one request and answers the request. The server's thread makes all calls,
// and holds the task until the answer is sent or the client is gone.
class HttpTask {
 public:
  virtual ~HttpTask() = default;

  // The body will have at least `bytes`. Is called before the server keeps these bytes, and again
  // whenever a body of unknown length grows. If this returns a page, the server sends it as the
  // answer and reads no more of the body.
  virtual std::optional<HttpPage> Expect(size_t bytes) = 0;
  // The server itself has refused the body, and Start is never called. `status`: 408 if the body
  // arrives too slowly, 413 if it is too large, 431 if its trailer is, 400 if it is not valid HTTP.
  // Returns the page that is sent with this status.
  virtual HttpPage Refused(int status) = 0;
  // The body has arrived. The task sends one answer: by Send, or by Begin, Write and End.
  virtual void Start(std::string body, std::shared_ptr<HttpAnswer> answer) = 0;
  // The part for which HttpAnswer::Write returned false is sent, or the client is gone.
  virtual void Written() {}
  // The whole answer has been written to the connection.
  virtual void Done() = 0;
  // The client has closed the connection before the answer was complete, or does not read it
  // (`stuck`). Nothing that is given to `answer` from now on is sent.
  virtual void Gone(bool stuck) = 0;
};

// Answers the requests of a server. The server's thread makes all calls.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // The head of a request has arrived. Returns the answer, which is sent without reading the body,
  // or the task that receives the body.
  virtual std::variant<HttpPage, std::shared_ptr<HttpTask>> Handle(const HttpRequest& request) = 0;
  // The server itself has refused the head of a request. `status`: 408 if the head arrives too
  // slowly, 431 if it is too large, 400 if it is not valid HTTP. `peer` is HttpRequest::peer.
  // Returns the page that is sent with this status; null: a page with the status' name.
  virtual std::optional<HttpPage> HeadRefused(int /*status*/, const std::string& /*peer*/) {
    return std::nullopt;
  }
};

struct HttpOptions {
  // The most open connections. For one more, the server closes the oldest one without a complete
  // request. If each has one, it closes the new one or, with `gives_way`, the oldest.
  size_t connections = 64;
  size_t address_connections = 64;  // the same limit for the connections of one host (HostOf)
  bool gives_way = true;
  bool keep_alive = false;  // false: each answer ends its connection
  size_t header_bytes = 8192;
  size_t body_bytes = 0;  // the largest body of a request
  // The head of a request must arrive within `patience`. While an answer waits for its client, the
  // client must take more of it within that time, again and again. The body must arrive within
  // `body_patience`.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
  std::chrono::milliseconds body_patience = std::chrono::seconds(60);
  std::chrono::milliseconds idle = std::chrono::seconds(75);  // between two requests
  // Returns the TLS context for a new connection. Is called on the server's thread. If it is set,
  // the process must ignore SIGPIPE. Null: connections do not use TLS.
  std::function<std::shared_ptr<SSL_CTX>()> tls = nullptr;
};

}  // namespace aft::server
