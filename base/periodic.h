#pragma once

#include <pthread.h>

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/catching.h"
#include "base/mutex.h"

namespace aft {

// Calls a function every `period`, on a thread of its own, the first time after one period. The
// destructor waits for a call that is running, and no call follows. When a call throws, for example
// because there is no memory for it, the next one still comes at its time.
class Periodic {
 public:
  // `name` is the name of the thread, a constant of at most 15 characters.
  Periodic(const char* name, std::chrono::steady_clock::duration period, std::function<void()> call)
      : period_(period), call_(std::move(call)), thread_([this, name] { Run(name); }) {}
  ~Periodic() {
    {
      MutexLock lock(mutex_);
      ended_ = true;
      end_.NotifyAll();
    }
    thread_.join();
  }
  Periodic(const Periodic&) = delete;
  Periodic& operator=(const Periodic&) = delete;

 private:
  void Run(const char* name) {
    pthread_setname_np(pthread_self(), name);
    const auto call = [this] {
      call_();
      return absl::OkStatus();
    };
    while (Wait()) Catching(call).IgnoreError();
  }

  // Waits for `period`. False as soon as the destructor runs.
  bool Wait() {
    MutexLock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + period_;
    while (!ended_ && end_.WaitUntil(mutex_, until)) {
    }
    return !ended_;
  }

  const std::chrono::steady_clock::duration period_;
  const std::function<void()> call_;
  Mutex mutex_;
  CondVar end_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace aft
