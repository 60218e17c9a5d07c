#pragma once

namespace aft {

// While one lives, the system refuses every std::thread of this process, as if there were too many
// threads (EAGAIN). gRPC's own threads are made: it waits for ever at its end for one that was not.
// One at a time.
class NoMoreThreads {
 public:
  NoMoreThreads();
  ~NoMoreThreads();
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
};

}  // namespace aft
