#include "tests/support/short_memory.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
constinit std::atomic<size_t> limit{kNoLimit};

}  // namespace

aft::ShortMemory::ShortMemory(size_t bytes) { limit = bytes; }
aft::ShortMemory::~ShortMemory() { limit = kNoLimit; }

// The forms for arrays call these, but under a sanitizer, whose own then go together.
void* operator new(size_t size) {
  void* const memory = size < limit ? std::malloc(size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { std::free(memory); }
