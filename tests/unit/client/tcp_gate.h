#pragma once

#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/tcp.h"

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

  std::optional<BoundPort> listener_{std::in_place};
  const std::string address_ = listener_->address();
  int wake_read_ = -1;
  int wake_write_ = -1;
  std::thread thread_;
};

}  // namespace aft::client
