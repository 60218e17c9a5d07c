#pragma once

#include <vector>

#include "server/scheduling/time.h"

namespace aft::server {

// Keeps a port's connections from being reset while they close. gRPC closes a connection that got
// GOAWAY with its last stream. Where bytes of the client lie unread then (a ping, a window update),
// the kernel resets the connection and forgets what it had not sent: the ends of streams. A second
// descriptor of each prevents that: gRPC's shutdown(2) still sends all, and the end. What a client
// sends after that still resets its connection. Not thread-safe.
class LingeringConnections {
 public:
  LingeringConnections() = default;
  ~LingeringConnections();  // lets go of all
  LingeringConnections(const LingeringConnections&) = delete;
  LingeringConnections& operator=(const LingeringConnections&) = delete;

  // Takes hold of the process's connections whose own port is `port`. What cannot be held (no
  // descriptors left) is left alone.
  void Hold(int port);

  // Lets go of each when its peer has received everything or the connection is gone, at the latest
  // at `deadline`. After gRPC has closed them.
  void Release(TimePoint deadline);

 private:
  std::vector<int> held_;
};

}  // namespace aft::server
