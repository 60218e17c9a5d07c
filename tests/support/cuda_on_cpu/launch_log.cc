#include "tests/support/cuda_on_cpu/launch_log.h"

#include <sanitizer/common_interface_defs.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <tuple>

namespace cuda_on_cpu {

void LogLaunch(const void* kernel, size_t threads, size_t shared_bytes) {
  const char* const path = std::getenv("AFT_LAUNCH_LOG");
  if (path == nullptr) return;
  static std::set<std::tuple<const void*, size_t, size_t>> logged;
  if (!logged.emplace(kernel, threads, shared_bytes).second) return;
  std::array<char, 4096> name{};
  // Of an address inside the function: it looks before the one it is given.
  void* const inside = const_cast<char*>(static_cast<const char*>(kernel)) + 1;
  __sanitizer_symbolize_pc(inside, "%f", name.data(), name.size());
  std::ofstream file(path, std::ios::app);
  file << threads << '\t' << shared_bytes << '\t' << name.data() << '\n';
  if (!file.flush()) {
    std::perror(path);
    std::abort();
  }
}

}  // namespace cuda_on_cpu
