#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/http/http_handler.h"

namespace aft::server {

// Serves HTTP/1.1 over TCP until it is destroyed. It answers bytes that are not HTTP with 400, a
// head longer than header_bytes with 431, a body longer than body_bytes with 413, and a head or
// body that arrives too slowly with 408. The headers of an answer forbid browsers to cache it, to
// show it in a frame, and to run scripts in it, unless its page sets them differently.
//
// One thread (Boost.Asio's loop) handles all connections. A connection that stalls costs a few
// kilobytes and delays no other one. A client may send requests before it has the answers to
// earlier ones; it gets the answers in order.
class HttpServer {
 public:
  // `address` is host:port; port 0 lets the kernel choose. UNAVAILABLE, naming the address, when it
  // cannot be bound. `handler` must outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const std::string& address,
                                                            HttpHandler& handler,
                                                            const HttpOptions& options = {});
  // Does the same as Stop.
  ~HttpServer();
  // Ends its thread and closes every connection. HttpAnswer::Post may still be called, and drops
  // its work.
  void Stop();

  // The bound port.
  int port() const;

  // From now on each answer says that its connection ends, so that its client makes a new one,
  // perhaps to another server. New connections are still accepted.
  void BeginLameDuck();
  // Accepts no more connections and closes those that wait for a request; the others end with their
  // answer, also if the body of the request is still arriving.
  void BeginDrain();
  // Closes all connections soon, also those whose clients do not read their answers.
  void CloseConnections();

 private:
  class Loop;

  explicit HttpServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace aft::server
