#include "tests/fuzz/target.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <new>

#include "absl/strings/ascii.h"
#include "model/tokenizer/utf8_character.h"

#if defined(__has_feature)
#define AFT_ADDRESS_SANITIZER __has_feature(address_sanitizer)  // clang
#elif defined(__SANITIZE_ADDRESS__)
#define AFT_ADDRESS_SANITIZER 1
#endif
#if AFT_ADDRESS_SANITIZER
// GCC does not install <sanitizer/allocator_interface.h>, which declares these.
extern "C" {
size_t __sanitizer_get_allocated_size(const volatile void* memory);
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                              void (*on_free)(const volatile void*));
}
#endif

namespace aft::fuzz {
namespace {

// Bytes of this thread. They are signed, because another thread may free what one has allocated.
constinit thread_local int64_t allocated = 0;
constinit thread_local int64_t peak = 0;

void Count(int64_t bytes) {
  allocated += bytes;
  peak = std::max(peak, allocated);
}

constexpr absl::string_view kBorder = "----\n";

}  // namespace

std::vector<absl::string_view> Sections(absl::string_view text, size_t count) {
  std::vector<absl::string_view> sections(count);
  for (size_t i = 0; i + 1 < count; ++i) {
    size_t border = text.find(kBorder);
    while (border != absl::string_view::npos && border > 0 && text[border - 1] != '\n') {
      border = text.find(kBorder, border + 1);
    }
    sections[i] = text.substr(0, border);
    text.remove_prefix(std::min(sections[i].size() + kBorder.size(), text.size()));
  }
  sections.back() = text;
  return sections;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t size = FirstCharacter(text).size;
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

bool IsMessage(absl::string_view text) {
  constexpr size_t kMostBytes = 1024;
  return !text.empty() && text.size() <= kMostBytes && IsUtf8(text) &&
         std::none_of(text.begin(), text.end(),
                      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

}  // namespace aft::fuzz

using namespace aft::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int64_t before = peak = allocated;
  RunInput(data, size);
  const int64_t bytes = peak - before;
  const int64_t most = kMemory.fixed + kMemory.per_byte * static_cast<int64_t>(size);
  if (bytes > most) {
    std::cerr << "out of proportion: " << bytes << " bytes of memory for an input of " << size
              << ", at most " << most << std::endl;
    std::abort();
  }
  return 0;
}

#if AFT_ADDRESS_SANITIZER

// The sanitizer's allocator stays in place and calls these hooks.
[[maybe_unused]] const int hooked = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void* memory, size_t /*bytes*/) {
      Count(static_cast<int64_t>(__sanitizer_get_allocated_size(memory)));
    },
    [](const volatile void* memory) {
      if (memory != nullptr) Count(-static_cast<int64_t>(__sanitizer_get_allocated_size(memory)));
    });

#elif !defined(__SANITIZE_THREAD__)

namespace {

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  Count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) Count(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace

// The operators for arrays and those that do not throw call these.
void* operator new(size_t size) { return Counted(std::malloc(size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  return Counted(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }

#endif
