#include "server/rpc/lingering_connections.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "absl/strings/numbers.h"

namespace aft::server {
namespace {

// Of a TCP connection, whatever its IP version; -1 for anything else.
int OwnPort(int fd) {
  sockaddr_in6 address = {};  // an IPv4 address has its port at the same place
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(fd, any, &size) != 0) return -1;
  if (any->sa_family != AF_INET && any->sa_family != AF_INET6) return -1;
  return ntohs(address.sin6_port);
}

bool IsConnected(int fd) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
}

// Everything has arrived, or nothing more will.
bool IsOver(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return true;
  if (info.tcpi_state == TCP_CLOSE) return true;
  int unsent = 0;
  return ioctl(fd, SIOCOUTQ, &unsent) != 0 || unsent == 0;
}

}  // namespace

LingeringConnections::~LingeringConnections() {
  for (const int fd : held_) close(fd);
}

void LingeringConnections::Hold(int port) {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return;
  std::vector<int> open;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody else reads from this stream
  while (const dirent* entry = readdir(folder)) {
    int fd = -1;
    if (absl::SimpleAtoi(entry->d_name, &fd) && fd != dirfd(folder)) open.push_back(fd);
  }
  closedir(folder);
  for (const int fd : open) {
    if (OwnPort(fd) != port || !IsConnected(fd)) continue;
    const int held = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (held < 0) continue;
    // The number may have become another file's meanwhile.
    if (OwnPort(held) == port) {
      held_.push_back(held);
    } else {
      close(held);
    }
  }
}

void LingeringConnections::Release(TimePoint deadline) {
  while (true) {
    std::erase_if(held_, [](int fd) {
      if (!IsOver(fd)) return false;
      close(fd);
      return true;
    });
    if (held_.empty() || std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (const int fd : held_) close(fd);
  held_.clear();
}

}  // namespace aft::server
