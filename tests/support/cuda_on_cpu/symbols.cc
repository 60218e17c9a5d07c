#include "tests/support/cuda_on_cpu/symbols.h"

#include <sanitizer/common_interface_defs.h>

#include <array>

namespace cuda_on_cpu {
namespace {

// Symbolizes the instruction before `code`, as in a call stack.
std::string Symbolize(const void* code, const char* format) {
  std::array<char, 4096> text{};
  __sanitizer_symbolize_pc(const_cast<void*>(code), format, text.data(), text.size());
  return text.data();
}

}  // namespace

std::string NameOf(const void* function) {
  return Symbolize(static_cast<const char*>(function) + 1, "%f");
}
std::string PlaceOf(const void* code) { return Symbolize(code, "%s:%l"); }

}  // namespace cuda_on_cpu
