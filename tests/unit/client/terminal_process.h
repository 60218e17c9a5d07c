#pragma once

#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"

namespace aft::client {

// A child process on a terminal of its own. The destructor kills it if it still runs.
class TerminalProcess {
 public:
  explicit TerminalProcess(std::vector<std::string> argv) {
    std::vector<char*> pointers;
    for (std::string& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    setenv("TERM", "xterm", 1);
    pid_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    AFT_CHECK(pid_ >= 0);
    if (pid_ > 0) return;
    signal(SIGINT, SIG_DFL);  // a test in the background of a shell ignores it
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  ~TerminalProcess() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    Wait();
    close(fd_);
  }

  void Type(const std::string& keys) {
    AFT_CHECK(write(fd_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  // Blocks until the screen has shown `text` since the last call. Returns false if the child ends
  // before.
  bool WaitFor(const std::string& text) {
    while (true) {
      if (const size_t at = shown_.find(text); at != std::string::npos) {
        shown_.erase(0, at + text.size());
        return true;
      }
      std::array<char, 4096> buffer;
      const ssize_t size = read(fd_, buffer.data(), buffer.size());
      if (size <= 0) return false;
      shown_.append(buffer.data(), static_cast<size_t>(size));
    }
  }
  // Returns the status that waitpid gives.
  int Wait() {
    int status = -1;
    if (pid_ > 0) waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string shown_;
};

}  // namespace aft::client
