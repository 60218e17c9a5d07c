#pragma once

#include <cstddef>

namespace aft {

// While one lives, operator new throws std::bad_alloc for so many bytes or more, on every thread,
// but for the first `left` times: as in a process that has memory left for little things alone. One
// at a time.
class ShortMemory {
 public:
  explicit ShortMemory(size_t bytes, int left = 0);
  ~ShortMemory();
  ShortMemory(const ShortMemory&) = delete;
  ShortMemory& operator=(const ShortMemory&) = delete;
};

}  // namespace aft
