#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "base/check.h"

namespace aft {

// A child process that stops in the middle of writing a file: after its first byte. The constructor
// returns when it has stopped. REQUIRES: `write` writes a file of at least two bytes.
class StoppedWriter {
 public:
  explicit StoppedWriter(const std::function<void()>& write) : child_(fork()) {
    AFT_CHECK(child_ >= 0);
    if (child_ == 0) {
      const rlimit one_byte = {1, 1};
      AFT_CHECK(setrlimit(RLIMIT_FSIZE, &one_byte) == 0);
      signal(SIGXFSZ, [](int /*signal*/) { raise(SIGSTOP); });
      write();
      _exit(1);
    }
    int status = 0;
    AFT_CHECK(waitpid(child_, &status, WUNTRACED) == child_ && WIFSTOPPED(status));
  }
  ~StoppedWriter() { Kill(); }
  StoppedWriter(const StoppedWriter&) = delete;
  StoppedWriter& operator=(const StoppedWriter&) = delete;

  // Kills the process with SIGKILL and waits for its end.
  void Kill() {
    if (child_ > 0) AFT_CHECK(kill(child_, SIGKILL) == 0 && waitpid(child_, nullptr, 0) == child_);
    child_ = 0;
  }

 private:
  pid_t child_;
};

}  // namespace aft
