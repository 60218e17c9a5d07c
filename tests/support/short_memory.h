#pragma once

#include <cstddef>

namespace aft {

// While one lives, operator new throws std::bad_alloc for so many bytes or more, on every thread:
// as in a process that has memory left for little things alone. One at a time.
class ShortMemory {
 public:
  explicit ShortMemory(size_t bytes);
  ~ShortMemory();
  ShortMemory(const ShortMemory&) = delete;
  ShortMemory& operator=(const ShortMemory&) = delete;
};

}  // namespace aft
