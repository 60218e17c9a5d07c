#pragma once

#include <vector>

#include "base/mutex.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Lets the clients of a port receive what was written before a connection was closed. gRPC closes
// a connection that got GOAWAY (a drain, its age) with its last stream, by shutdown(SHUT_RDWR) and
// close(). When anything of the client arrives after that or lies unread then (a ping, a window
// update), the kernel resets the connection and forgets what it had not sent: the ends of streams.
// So this file defines shutdown(2) for the process. While an object of this class keeps a port, a
// connection of that port whose client has not closed it is shut for writing alone, and a second
// descriptor keeps it for at most 10 seconds, until the client has closed it too. Thread-safe.
class LingeringConnections {
 public:
  LingeringConnections() = default;
  ~LingeringConnections();  // lets go of all
  LingeringConnections(const LingeringConnections&) = delete;
  LingeringConnections& operator=(const LingeringConnections&) = delete;

  // Keeps the connections whose own port is `port`, from now on. At most once.
  void Keep(int port);

  // Returns when no kept connection is left: their clients have closed them, or got everything and
  // had until `received` to close, or it is `deadline`.
  void Release(TimePoint received, TimePoint deadline);

  // Takes a second descriptor of `fd` if it is one to keep. For shutdown(2).
  bool Take(int fd);

 private:
  struct Connection {
    int fd;
    TimePoint since;
  };
  // Closes those that are over at `now`.
  void Sweep(TimePoint now, TimePoint received) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  int port_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Connection> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server
