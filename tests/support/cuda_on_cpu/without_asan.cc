// The functions of AddressSanitizer that this layer uses, for the build without it
// (AFT_CUDA_RACES).
#include <dlfcn.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" {

void __sanitizer_start_switch_fiber(void** /*fake_stack_save*/, const void* /*bottom*/,
                                    size_t /*size*/) {}
void __sanitizer_finish_switch_fiber(void* /*fake_stack_save*/, const void** /*bottom_old*/,
                                     size_t* /*size_old*/) {}
void __asan_poison_memory_region(const volatile void* /*from*/, size_t /*bytes*/) {}
void __asan_unpoison_memory_region(const volatile void* /*from*/, size_t /*bytes*/) {}
int __asan_address_is_poisoned(const volatile void* /*at*/) { return 0; }

// Uses addr2line: "%f" gives a name, any other format file:line.
void __sanitizer_symbolize_pc(void* pc, const char* format, char* out, size_t out_bytes) {
  Dl_info info;
  char program[4096] = {};
  if (dladdr(pc, &info) == 0 || readlink("/proc/self/exe", program, sizeof(program) - 1) < 0)
    return;
  const uintptr_t offset =
      reinterpret_cast<uintptr_t>(pc) - reinterpret_cast<uintptr_t>(info.dli_fbase) - 1;
  char command[8192];
  std::snprintf(command, sizeof(command), "addr2line -Cf -e '%s' %#" PRIxPTR, program, offset);
  std::FILE* const lines = popen(command, "r");
  if (lines == nullptr) return;
  char name[4096] = {};
  char place[4096] = {};
  if (std::fgets(name, sizeof(name), lines) != nullptr) {
    if (std::fgets(place, sizeof(place), lines) == nullptr) place[0] = '\0';
  }
  pclose(lines);
  const bool wants_name = std::strcmp(format, "%f") == 0;
  const char* const text = wants_name ? name : place;
  const int end = static_cast<int>(std::strcspn(text, wants_name ? "\n" : "\n "));
  std::snprintf(out, out_bytes, "%.*s", end, text);
}

}  // extern "C"
