#include "tests/support/short_memory.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
constinit std::atomic<size_t> limit{kNoLimit};
constinit std::atomic<int> left_over{0};

}  // namespace

aft::ShortMemory::ShortMemory(size_t bytes, int left) {
  left_over = left;
  limit = bytes;
}
aft::ShortMemory::~ShortMemory() { limit = kNoLimit; }

// The forms for arrays call these. Under a sanitizer they do not: its own new[] and delete[] are
// used then, and these match each other.
void* operator new(size_t size) {
  const bool refused = size >= limit && left_over.fetch_sub(1) <= 0;
  void* const memory = refused ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// std::stable_sort calls this form for its buffer. A sanitizer's own form would not match the
// delete below.
void* operator new(size_t size, const std::nothrow_t& /*tag*/) noexcept try {
  return operator new(size);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { std::free(memory); }
