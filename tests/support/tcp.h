#pragma once

#include <cstddef>
#include <string>

namespace aft {

// A TCP connection to host:port or [IPv6]:port. Closed when the object dies.
class TcpConnection {
 public:
  // `receive_buffer`: bytes that can arrive before they are read; 0: the kernel chooses. `from`:
  // the IPv4 address of this side; "": the kernel chooses. If no server listens at the address,
  // nothing can be sent and nothing is received.
  explicit TcpConnection(const std::string& address, int receive_buffer = 0,
                         const std::string& from = "");
  virtual ~TcpConnection();
  TcpConnection(TcpConnection&& other) noexcept;
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  // Sends the text, which the peer must accept.
  virtual void Send(const std::string& text) const;
  // False when the peer has closed the connection or was never there.
  virtual bool TrySend(const std::string& text) const;
  // Closes this side for sending: the peer reads the end of the data.
  void EndSending() const;
  // Reads until the received text ends with `end`, or the connection is closed.
  std::string ReadTo(const std::string& end) const;
  // Reads `size` bytes; fewer if the connection is closed.
  std::string Read(size_t size) const;
  // Reads up to the end of the connection.
  std::string ReadAll() const;

  int fd() const { return fd_; }  // -1: no server listens

 private:
  // Does the same as recv(2).
  virtual long Receive(void* data, size_t size) const;

  int fd_ = -1;
};

// A free loopback port that stays bound while the object lives, so that nothing else gets it.
class BoundPort {
 public:
  // `flags` of the socket: 0 or SOCK_NONBLOCK.
  explicit BoundPort(int flags = 0);
  ~BoundPort();
  BoundPort(const BoundPort&) = delete;
  BoundPort& operator=(const BoundPort&) = delete;

  int fd() const { return fd_; }
  int port() const { return port_; }
  std::string address() const;  // "127.0.0.1:PORT"

 private:
  const int fd_;
  int port_ = 0;
};

// A port on which nothing listens.
class ClosedPort : public BoundPort {};

// A port that accepts connections (the kernel does, in its backlog) and never answers.
class SilentPort : public BoundPort {
 public:
  SilentPort();
};

// Returns the whole answer, headers included.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace aft
