#include "tests/unit/client/tcp_gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace aft::client {
namespace {

// Returns a socket that is bound to a free loopback port, and sets `address`.
int BindLoopback(std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  socklen_t size = sizeof(name);
  AFT_CHECK(fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0);
  address = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  return fd;
}

// Connects to a loopback port. If nothing listens there, nothing can be read from the socket.
int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(static_cast<uint16_t>(port));
  static_cast<void>(connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)));
  return fd;
}

// Forwards the bytes that have arrived. Returns false if the connection has ended.
bool Forward(int from, int to) {
  std::array<char, 65536> buffer;
  const ssize_t size = recv(from, buffer.data(), buffer.size(), 0);
  if (size <= 0) return false;
  for (ssize_t sent = 0; sent < size;) {
    const ssize_t n = send(to, &buffer[static_cast<size_t>(sent)], static_cast<size_t>(size - sent),
                           MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += n;
  }
  return true;
}

}  // namespace

// All descriptors have CLOEXEC. Programs that this process starts in the meantime must not inherit
// them, because they would keep a cut connection open.
TcpGate::TcpGate(int target_port) : listener_(BindLoopback(address_)) {
  std::array<int, 2> wake;
  AFT_CHECK(listen(listener_, 1) == 0 && pipe2(wake.data(), O_CLOEXEC) == 0);
  wake_read_ = wake[0];
  wake_write_ = wake[1];
  thread_ = std::thread([this, target_port] { Run(target_port); });
}

TcpGate::~TcpGate() {
  Cut();
  close(wake_read_);
}

void TcpGate::Cut() {
  if (!thread_.joinable()) return;
  close(wake_write_);  // the thread sees the pipe's end
  thread_.join();
}

void TcpGate::Run(int target_port) {
  std::array<pollfd, 2> first = {pollfd{listener_, POLLIN, 0}, pollfd{wake_read_, POLLIN, 0}};
  poll(first.data(), first.size(), -1);
  if (first[1].revents == 0) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int server = Connect(target_port);
    std::array<pollfd, 3> fds = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0},
                                 pollfd{wake_read_, POLLIN, 0}};
    bool open = true;
    while (open) {
      poll(fds.data(), fds.size(), -1);
      open = fds[2].revents == 0;
      if (open && fds[0].revents != 0) open = Forward(client, server);
      if (open && fds[1].revents != 0) open = Forward(server, client);
    }
    close(client);
    close(server);
  }
  close(listener_);
}

BoundPort::BoundPort() : socket_(BindLoopback(address_)) {}
BoundPort::~BoundPort() { close(socket_); }

SilentPort::SilentPort() { AFT_CHECK(listen(socket_, 8) == 0); }

}  // namespace aft::client
