#include "model/runtime/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace aft {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t MemAvailable() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  std::string unit;
  while (meminfo >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(meminfo, unit);
  }
  return kUnknown;
}

// cgroup v2, as seen inside a container. "max" fails to parse: no limit.
int64_t LeftInCgroup() {
  int64_t limit = 0;
  int64_t used = 0;
  if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> limit)) return kUnknown;
  if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> used)) return kUnknown;
  return std::max<int64_t>(limit - used, 0);
}

}  // namespace

int64_t AvailableMemory() { return std::min(MemAvailable(), LeftInCgroup()); }

}  // namespace aft
