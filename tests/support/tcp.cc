#include "tests/support/tcp.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace aft {

TcpConnection::TcpConnection(const std::string& address, int receive_buffer,
                             const std::string& from) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  AFT_CHECK(getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) == 0);
  fd_ = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  if (receive_buffer > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const int segment = 536;  // this keeps the peer's buffer small, too
    setsockopt(fd_, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
  }
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (!from.empty()) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    AFT_CHECK(inet_pton(AF_INET, from.c_str(), &own.sin_addr) == 1);
    AFT_CHECK(bind(fd_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0);
  }
  if (connect(fd_, found->ai_addr, found->ai_addrlen) != 0) close(std::exchange(fd_, -1));
  freeaddrinfo(found);
}

TcpConnection::TcpConnection(TcpConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

TcpConnection::~TcpConnection() {
  if (fd_ >= 0) close(fd_);
}

void TcpConnection::Send(const std::string& text) const { AFT_CHECK(TrySend(text)); }

bool TcpConnection::TrySend(const std::string& text) const {
  return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

void TcpConnection::EndSending() const { shutdown(fd_, SHUT_WR); }

long TcpConnection::Receive(void* data, size_t size) const { return recv(fd_, data, size, 0); }

std::string TcpConnection::ReadTo(const std::string& end) const {
  std::string text;
  for (char c = 0; Receive(&c, 1) == 1;) {
    text.push_back(c);
    const bool found =
        text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
    if (found) break;
  }
  return text;
}

std::string TcpConnection::Read(size_t size) const {
  std::string text(size, '\0');
  size_t end = 0;
  for (long bytes = 0; end < size && (bytes = Receive(&text[end], size - end)) > 0;) {
    end += static_cast<size_t>(bytes);
  }
  text.resize(end);
  return text;
}

std::string TcpConnection::ReadAll() const {
  std::string text;
  std::array<char, 65536> buffer;
  for (long size = 0; (size = Receive(buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(size));
  }
  return text;
}

// With CLOEXEC, so that programs that this process starts do not keep connections open.
BoundPort::BoundPort(int flags) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&name);
  socklen_t size = sizeof(name);
  AFT_CHECK(fd_ >= 0 && bind(fd_, any, size) == 0 && getsockname(fd_, any, &size) == 0);
  port_ = ntohs(name.sin_port);
}

BoundPort::~BoundPort() { close(fd_); }

std::string BoundPort::address() const { return absl::StrCat("127.0.0.1:", port_); }

SilentPort::SilentPort() { AFT_CHECK(listen(fd(), 8) == 0); }

std::string HttpGet(const std::string& address, const std::string& path) {
  const TcpConnection connection(address);
  connection.Send("GET " + path + " HTTP/1.0\r\n\r\n");
  return connection.ReadAll();
}

}  // namespace aft
