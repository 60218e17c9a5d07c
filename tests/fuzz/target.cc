#include "tests/fuzz/target.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "absl/strings/ascii.h"
#include "model/tokenizer/utf8_character.h"

namespace aft::fuzz {
namespace {

// Of this thread. Signed: what one thread allocates, another may free.
constinit thread_local int64_t allocated = 0;
constinit thread_local int64_t peak = 0;

constexpr absl::string_view kBorder = "----\n";

}  // namespace

PeakMemory::PeakMemory() : before_(allocated), outer_peak_(peak) { peak = allocated; }
PeakMemory::~PeakMemory() { peak = std::max(peak, outer_peak_); }
int64_t PeakMemory::bytes() const { return peak - before_; }

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

#if defined(AFT_LIBFUZZER)

void aft::fuzz::Saw(absl::string_view /*place*/) {}  // libFuzzer counts branches

#elif !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

using aft::fuzz::allocated;
using aft::fuzz::peak;

namespace {

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  allocated += static_cast<int64_t>(malloc_usable_size(memory));
  peak = std::max(peak, allocated);
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) allocated -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// Arrays and the forms without exceptions go through these.
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
