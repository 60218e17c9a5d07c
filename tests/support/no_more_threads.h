#pragma once

namespace aft {

// While an object of this class exists, the system refuses every std::thread of this process,
// except for the first `left`, as if there were too many threads (EAGAIN). gRPC's own threads are
// not refused: if one were, gRPC would wait for it forever at its end. Only one object may exist at
// a time.
class NoMoreThreads {
 public:
  explicit NoMoreThreads(int left = 0);
  ~NoMoreThreads();
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
};

}  // namespace aft
