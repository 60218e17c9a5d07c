#include "server/transport/accept_again.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

namespace aft::server {
namespace {

// The listeners that failed, each as its descriptor + 1; 0: a free place. A server has one, or two
// if its host name has two addresses. One that finds no place waits for its next connection.
constinit std::array<std::atomic<int>, 8> failed_listeners{};
constinit std::atomic<int> accept_error{0};

// Whether gRPC accepts again after this error by itself, or should never do so.
bool IsLeftToGrpc(int error) {
  return error == EINTR || error == EAGAIN || error == EBADF || error == EFAULT ||
         error == EINVAL || error == ENOTSOCK;
}

void AddFailedListener(int fd, int error) {
  accept_error = error;
  for (std::atomic<int>& place : failed_listeners) {
    int there = 0;
    if (place.compare_exchange_strong(there, fd + 1) || there == fd + 1) return;
  }
}

int Accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  const auto accepted = static_cast<int>(syscall(SYS_accept4, fd, address, size, flags));
  if (accepted < 0 && !IsLeftToGrpc(errno)) {
    AddFailedListener(fd, errno);
    errno = EAGAIN;
  }
  return accepted;
}

}  // namespace

int AcceptAgain() {
  int error = 0;
  for (std::atomic<int>& place : failed_listeners) {
    const int fd = place.exchange(0) - 1;
    if (fd < 0) continue;
    error = accept_error;
    // When this option is set, also to the value that it has, Linux wakes the socket's epoll, which
    // then reports everything that is ready. If the descriptor belongs to another socket by now,
    // nothing else happens to that.
    int bytes = 0;
    socklen_t size = sizeof(bytes);
    if (getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &size) == 0) {
      setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, size);
    }
  }
  return error;
}

}  // namespace aft::server

// Replaces libc's accept4 for the whole process, including gRPC's library.
extern "C" __attribute__((visibility("default"))) int accept4(int fd, sockaddr* address,
                                                              socklen_t* size, int flags) {
  return aft::server::Accept4(fd, address, size, flags);
}
