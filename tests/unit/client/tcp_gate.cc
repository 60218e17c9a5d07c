#include "tests/unit/client/tcp_gate.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace aft::client {
namespace {

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
TcpGate::TcpGate(int target_port) {
  std::array<int, 2> wake;
  AFT_CHECK(listen(listener_->fd(), 1) == 0 && pipe2(wake.data(), O_CLOEXEC) == 0);
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
  std::array<pollfd, 2> first = {pollfd{listener_->fd(), POLLIN, 0}, pollfd{wake_read_, POLLIN, 0}};
  poll(first.data(), first.size(), -1);
  if (first[1].revents == 0) {
    const int client = accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC);
    const TcpConnection server(absl::StrCat("127.0.0.1:", target_port));
    std::array<pollfd, 3> fds = {pollfd{client, POLLIN, 0}, pollfd{server.fd(), POLLIN, 0},
                                 pollfd{wake_read_, POLLIN, 0}};
    bool open = server.fd() >= 0;
    while (open) {
      poll(fds.data(), fds.size(), -1);
      open = fds[2].revents == 0;
      if (open && fds[0].revents != 0) open = Forward(client, server.fd());
      if (open && fds[1].revents != 0) open = Forward(server.fd(), client);
    }
    close(client);
  }
  listener_.reset();
}

}  // namespace aft::client
