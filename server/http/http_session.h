#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/address.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "server/http/http_handler.h"

namespace aft::server {

// The host whose connections are counted together: an IPv4 address, or the /64 of an IPv6 address,
// because one host usually has all addresses of a /64.
std::string HostOf(const boost::asio::ip::address& address);

// One connection of a client. Only the server's thread uses it.
class HttpSession {
 public:
  virtual ~HttpSession() = default;

  virtual void Close() = 0;
  virtual const std::string& host() const = 0;  // HostOf the client's address
  virtual bool running() const = 0;  // it has a request under way, whose body has arrived
  virtual bool waiting() const = 0;  // it waits for the head of a request, or for the rest of one
};

// The data that all connections of a server share. Only the server's thread uses it, except for
// Post and `context`.
struct HttpConnections {
  // Runs `work` on the server's thread. Work that is posted while that thread is busy costs it no
  // further wake-up.
  void Post(std::function<void()> work);
  void RunPosted();

  HttpHandler& handler;
  const HttpOptions options;
  std::list<HttpSession*> sessions = {};     // the oldest first
  std::map<std::string, size_t> hosts = {};  // connections of each (HostOf)
  bool last_answers = false;                 // each answer says that its connection ends
  bool draining = false;                     // each connection ends with its current answer
  bool at_loopback = false;                  // HttpRequest::at_loopback

  // These hold sessions, which use the members above.
  boost::asio::io_context context{1};
  std::vector<std::function<void()>> running = {};  // RunPosted runs it
  Mutex mutex = {};
  std::vector<std::function<void()>> posted ABSL_GUARDED_BY(mutex) = {};
  bool runs ABSL_GUARDED_BY(mutex) = false;  // RunPosted will run
};

// Makes a session that reads requests from the socket. The pending operations of the session own
// it, and so does the HttpAnswer of its request.
void StartHttpSession(HttpConnections& connections, boost::asio::ip::tcp::socket socket,
                      const boost::asio::ip::tcp::endpoint& peer);

}  // namespace aft::server
