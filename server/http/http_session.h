#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <string>

#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "server/http/http_handler.h"

namespace aft::server {

// One connection.
class HttpSession {
 public:
  virtual ~HttpSession() = default;

  virtual void Close() = 0;
  virtual const std::string& address() const = 0;
  virtual bool running() const = 0;  // it has a request under way
};

// What the connections of a server share. The thread's own, but for `context`.
struct HttpConnections {
  HttpHandler& handler;
  const HttpOptions options;
  std::list<HttpSession*> sessions = {};         // the oldest first
  std::map<std::string, size_t> addresses = {};  // connections of each
  bool draining = false;                         // each answer is its connection's last
  boost::asio::io_context context{1};  // what waits in it, sessions among them, goes first
};

// Begins to read. The session is owned by what it waits for, and by who answers its request.
void StartHttpSession(HttpConnections& connections, boost::asio::ip::tcp::socket socket,
                      const boost::asio::ip::tcp::endpoint& peer);

}  // namespace aft::server
