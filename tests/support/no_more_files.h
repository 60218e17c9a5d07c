#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace aft {

// While an object of this class exists, this process can open no more file descriptors, except for
// the first `left`. Only one object may exist at a time.
class NoMoreFiles {
 public:
  explicit NoMoreFiles(int left = 0) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDERR_FILENO);
    close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next) + static_cast<rlim_t>(left);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoMoreFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

}  // namespace aft
