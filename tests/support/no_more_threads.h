#pragma once

namespace aft {

// While one lives, the system refuses every thread that this process asks for, as if there were too
// many (EAGAIN). One at a time.
class NoMoreThreads {
 public:
  NoMoreThreads();
  ~NoMoreThreads();
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
};

}  // namespace aft
