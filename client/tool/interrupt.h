#pragma once

#include <atomic>
#include <thread>

#include "client/lib/cancel_token.h"

namespace aft::client {

// While alive, the first SIGINT or SIGTERM cancels `token`; a second one ends the process at once
// with exit code 128 + signal.
//
// Construct it before anything that starts threads (a Client does): the signals must be blocked in
// every thread but the one that waits for them here.
class Interrupt {
 public:
  explicit Interrupt(CancelToken& token);
  ~Interrupt();

  // 128 + the signal that came; 0: none.
  int exit_code() const { return exit_code_.load(); }

 private:
  void Run();

  CancelToken& token_;
  std::atomic<int> exit_code_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace aft::client
