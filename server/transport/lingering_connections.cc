#include "server/transport/lingering_connections.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace aft::server {
namespace {

constexpr std::chrono::seconds kLongest{10};

// The objects that keep a port. Never destroyed: sockets are also closed while the process exits.
struct Keepers {
  Mutex mutex;
  std::vector<LingeringConnections*> all ABSL_GUARDED_BY(mutex);
};
Keepers& TheKeepers() {
  static Keepers& keepers = *new Keepers;
  return keepers;
}

// The own port of a TCP connection over IPv4 or IPv6; -1 for any other descriptor.
int OwnPort(int fd) {
  sockaddr_in6 address = {};  // an IPv4 address has its port at the same place
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(fd, any, &size) != 0) return -1;
  if (any->sa_family != AF_INET && any->sa_family != AF_INET6) return -1;
  return ntohs(address.sin6_port);
}

int TcpState(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return TCP_CLOSE;
  return info.tcpi_state;
}

bool PeerHasEverything(int fd) {
  int unacknowledged = 0;
  return ioctl(fd, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

bool TakenByAKeeper(int fd) {
  Keepers& keepers = TheKeepers();
  MutexLock lock(keepers.mutex);
  return std::any_of(keepers.all.begin(), keepers.all.end(),
                     [fd](LingeringConnections* keeper) { return keeper->Take(fd); });
}

}  // namespace

LingeringConnections::~LingeringConnections() {
  {
    Keepers& keepers = TheKeepers();
    MutexLock lock(keepers.mutex);
    std::erase(keepers.all, this);
  }
  sweeper_ = nullptr;
  for (const Connection& connection : kept_) close(connection.fd);
}

void LingeringConnections::Keep(int port) {
  {
    MutexLock lock(mutex_);
    port_ = port;
  }
  sweeper_ = std::make_unique<Periodic>("aft-lingering", std::chrono::seconds(1), [this] {
    MutexLock lock(mutex_);
    Sweep(std::chrono::steady_clock::now(), TimePoint::max());
  });
  Keepers& keepers = TheKeepers();
  MutexLock lock(keepers.mutex);
  keepers.all.push_back(this);
}

size_t LingeringConnections::kept() const {
  MutexLock lock(mutex_);
  return kept_.size();
}

bool LingeringConnections::Take(int fd) {
  MutexLock lock(mutex_);
  if (OwnPort(fd) != port_ || TcpState(fd) != TCP_ESTABLISHED) return false;
  const int second = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (second < 0) return false;  // no descriptors left
  kept_.push_back({second, std::chrono::steady_clock::now()});
  if (kept_.size() > most_) {
    close(kept_.front().fd);
    kept_.pop_front();
  }
  return true;
}

void LingeringConnections::Sweep(TimePoint now, TimePoint received) {
  std::erase_if(kept_, [&](const Connection& connection) {
    const bool over = TcpState(connection.fd) == TCP_CLOSE || now - connection.since >= kLongest ||
                      (now >= received && PeerHasEverything(connection.fd));
    if (over) close(connection.fd);
    return over;
  });
}

void LingeringConnections::Release(TimePoint received, TimePoint deadline) {
  while (true) {
    {
      MutexLock lock(mutex_);
      const TimePoint now = std::chrono::steady_clock::now();
      Sweep(now, received);
      if (kept_.empty()) return;
      if (now >= deadline) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  MutexLock lock(mutex_);
  for (const Connection& connection : kept_) close(connection.fd);
  kept_.clear();
}

}  // namespace aft::server

// Replaces libc's shutdown for the whole process, including gRPC's library.
extern "C" __attribute__((visibility("default"))) int shutdown(int fd, int how) noexcept {
  if (how == SHUT_RDWR && aft::server::TakenByAKeeper(fd)) how = SHUT_WR;
  return static_cast<int>(syscall(SYS_shutdown, fd, how));
}
