#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace aft::server {

// What a page answers.
struct HttpPage {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body{};
  // Beside those that every answer has; of the same name, instead of that one.
  std::map<std::string, std::string> headers{};
};

// By path. Called on the server's thread, one at a time.
using HttpPages = std::map<std::string, std::function<HttpPage()>>;

// Serves pages over HTTP/1.1 until destroyed, each answer on a connection of its own, compressed if
// the client takes gzip. GET and HEAD; other paths are 404, other methods 405, headers beyond
// kMaxHeaderBytes 431, what is no HTTP 400. No answer may be cached, framed or run anything.
//
// One thread (Boost.Asio's loop) has all connections, so whoever stalls costs a few kilobytes and
// nobody's time; of more than kConnections the oldest is closed, so none keeps others out.
class HttpServer {
 public:
  static constexpr size_t kConnections = 64;
  static constexpr size_t kMaxHeaderBytes = 8192;

  // `address` is host:port; port 0 lets the kernel choose. UNAVAILABLE, naming the address, when it
  // cannot be bound. `patience`: longest that a request may take to arrive, and that its answer may
  // take to be read.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(
      const std::string& address, HttpPages pages,
      std::chrono::milliseconds patience = std::chrono::seconds(10));
  // Closes every connection.
  ~HttpServer();

  // The bound port.
  int port() const;

 private:
  class Loop;

  explicit HttpServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace aft::server
