#pragma once

#include <atomic>
#include <thread>

#include "client/lib/cancel_token.h"

namespace aft::client {

// While it exists, the first SIGINT or SIGTERM cancels `token`. A second one ends the process at
// once with exit code 128 + signal. A signal that the process ignores has no effect.
//
// Must be constructed before anything that starts threads, such as a Client. The signals must be
// blocked in every thread except the one that waits for them here.
class Interrupt {
 public:
  explicit Interrupt(CancelToken& token);
  ~Interrupt();

  // 128 + the signal that arrived; 0: no signal.
  int exit_code() const { return exit_code_.load(); }

 private:
  void Run();

  CancelToken& token_;
  std::atomic<int> exit_code_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace aft::client
