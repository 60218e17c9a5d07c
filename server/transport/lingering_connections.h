#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>

#include "base/mutex.h"
#include "base/periodic.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Lets the clients of a port receive what was written before a connection was closed. gRPC closes
// a connection that got GOAWAY (a drain, its age) with its last stream, by shutdown(SHUT_RDWR) and
// close(). When anything of the client arrives after that or lies unread then (a ping, a window
// update), the kernel resets the connection and forgets what it had not sent: the ends of streams.
// So this file defines shutdown(2) for the process. While an object of this class keeps a port, a
// connection of that port whose client has not closed it is shut for writing alone, and a second
// descriptor keeps it for at most 10 seconds, until the client has closed it too. Clients decide
// how many connections are closed, so at most kMost are kept, the newest: what is closed costs the
// same however many there are, and those that are over are let go of every second. Thread-safe.
class LingeringConnections {
 public:
  static constexpr size_t kMost = 512;

  explicit LingeringConnections(size_t most = kMost) : most_(most) {}
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

  size_t kept() const;

 private:
  struct Connection {
    int fd;
    TimePoint since;
  };
  // Closes those that are over at `now`.
  void Sweep(TimePoint now, TimePoint received) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_;
  mutable Mutex mutex_;
  int port_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Connection> kept_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  std::unique_ptr<Periodic> sweeper_;                    // last: its thread uses all of the above
};

}  // namespace aft::server
