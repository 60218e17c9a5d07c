#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>

#include "base/mutex.h"
#include "base/periodic.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Lets the clients of a port receive what was written before a connection was closed. After GOAWAY
// (because of a drain or the connection's age), gRPC closes a connection with its last stream, by
// shutdown(SHUT_RDWR) and close(). If data of the client is unread then or arrives later (a ping, a
// window update), the kernel resets the connection. It discards what it has not sent yet, which are
// the ends of streams.
//
// This file therefore defines shutdown(2) for the process. While an object of this class keeps a
// port, a connection of that port that is still established is only shut for writing. A second
// descriptor keeps it for at most 10 seconds, until the client has closed it too. Clients decide
// how many connections are closed, so at most kMost are kept, the newest. Closing a connection
// costs the same however many are kept, and those that are over are released every second.
// Thread-safe.
class LingeringConnections {
 public:
  static constexpr size_t kMost = 512;

  explicit LingeringConnections(size_t most = kMost) : most_(most) {}
  ~LingeringConnections();  // releases all connections
  LingeringConnections(const LingeringConnections&) = delete;
  LingeringConnections& operator=(const LingeringConnections&) = delete;

  // Keeps the connections whose own port is `port`, from now on. To be called at most once.
  void Keep(int port);

  // Returns when no connection is kept any more, at the latest at `deadline`. A connection is
  // released when its client has closed it. From `received` on, it is also released when its client
  // has received everything.
  void Release(TimePoint received, TimePoint deadline);

  // Duplicates `fd` if it belongs to a connection to keep; returns whether it does. For
  // shutdown(2).
  bool Take(int fd);

  size_t kept() const;

 private:
  struct Connection {
    int fd;
    TimePoint since;
  };
  // Releases the connections that are over at `now`.
  void Sweep(TimePoint now, TimePoint received) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_;
  mutable Mutex mutex_;
  int port_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Connection> kept_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::unique_ptr<Periodic> sweeper_;                    // last: its thread uses all of the above
};

}  // namespace aft::server
