#pragma once

#include <cstddef>

namespace aft {

// While an object of this class exists, operator new throws std::bad_alloc for requests of `bytes`
// or more, on every thread, except for the first `left` such requests. So the process seems to have
// memory only for small objects. Only one object may exist at a time.
class ShortMemory {
 public:
  explicit ShortMemory(size_t bytes, int left = 0);
  ~ShortMemory();
  ShortMemory(const ShortMemory&) = delete;
  ShortMemory& operator=(const ShortMemory&) = delete;
};

}  // namespace aft
