#pragma once

#include <atomic>
#include <string>
#include <thread>

namespace aft::client {

// Forwards one TCP connection from a free loopback port to `target_port`, until it is cut. With it,
// a connection can break while a call is running.
class TcpGate {
 public:
  explicit TcpGate(int target_port);
  ~TcpGate();

  std::string address() const { return address_; }

  // Closes both sides. Connections are refused from then on.
  void Cut();

 private:
  void Run(int target_port);

  std::string address_;
  int listener_ = -1;
  int wake_read_ = -1;
  int wake_write_ = -1;
  std::thread thread_;
};

// A loopback port that stays bound while the object lives, so that nothing else gets it.
class BoundPort {
 public:
  BoundPort();
  ~BoundPort();
  BoundPort(const BoundPort&) = delete;
  BoundPort& operator=(const BoundPort&) = delete;
  std::string address() const { return address_; }

 protected:
  std::string address_;
  int socket_ = -1;
};

// A port on which nothing listens.
class ClosedPort : public BoundPort {};

// A port that accepts connections (the kernel does, in its backlog) and never answers.
class SilentPort : public BoundPort {
 public:
  SilentPort();
};

}  // namespace aft::client
