#include "tests/support/cuda_on_cpu/launch_log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <tuple>

#include "tests/support/cuda_on_cpu/symbols.h"

namespace cuda_on_cpu {

namespace {
std::atomic<int64_t> launches = 0;
}  // namespace

int64_t LaunchCount() { return launches; }

void LogLaunch(const void* kernel, size_t threads, size_t shared_bytes) {
  ++launches;
  const char* const path = std::getenv("AFT_LAUNCH_LOG");
  if (path == nullptr) return;
  static std::set<std::tuple<const void*, size_t, size_t>> logged;
  if (!logged.emplace(kernel, threads, shared_bytes).second) return;
  std::ofstream file(path, std::ios::app);
  file << threads << '\t' << shared_bytes << '\t' << NameOf(kernel) << '\n';
  if (!file.flush()) {
    std::perror(path);
    std::abort();
  }
}

}  // namespace cuda_on_cpu
