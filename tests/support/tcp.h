#pragma once

#include <cstddef>
#include <string>

namespace aft {

// A TCP connection to host:port. Closed when the object dies.
class TcpConnection {
 public:
  // `receive_buffer`: bytes that arrive before they are read; 0: the kernel's choice. Where nobody
  // listens, nothing can be sent, and nothing comes.
  explicit TcpConnection(const std::string& address, int receive_buffer = 0);
  virtual ~TcpConnection();
  TcpConnection(TcpConnection&& other) noexcept;
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  // The peer must take it.
  virtual void Send(const std::string& text) const;
  // False: the peer has closed the connection, or was never there.
  bool TrySend(const std::string& text) const;
  // The peer reads the end of what is sent.
  void EndSending() const;
  // What comes until it ends with `end`, or the connection is closed.
  std::string ReadTo(const std::string& end) const;
  // Up to the end of the connection.
  std::string ReadAll() const;

 protected:
  int fd() const { return fd_; }

 private:
  // As recv(2).
  virtual long Receive(void* data, size_t size) const;

  int fd_ = -1;
};

// The whole answer, headers included.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace aft
