#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/http/http_handler.h"

namespace aft::server {

// HTTP/1.1 over TCP until destroyed. What is no HTTP gets 400, a head beyond header_bytes 431, a
// body beyond body_bytes 413, one that is too slow 408. No answer may be cached, framed or run
// anything, unless its page says so.
//
// One thread (Boost.Asio's loop) has all connections, so whoever stalls costs a few kilobytes and
// nobody's time. A client that sends its next requests before it has its answer gets the answers
// one after the other.
class HttpServer {
 public:
  // `address` is host:port; port 0 lets the kernel choose. UNAVAILABLE, naming the address, when it
  // cannot be bound. `handler` must outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const std::string& address,
                                                            HttpHandler& handler,
                                                            const HttpOptions& options = {});
  // As Stop.
  ~HttpServer();
  // Ends its thread and closes every connection. Answers may still be given work, which is dropped.
  void Stop();

  // The bound port.
  int port() const;

  // Takes no more connections and closes those without a request; the others end with their answer.
  void BeginDrain();

 private:
  class Loop;

  explicit HttpServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace aft::server
