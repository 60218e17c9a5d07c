#include "model/runtime/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

namespace aft {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t MemAvailable(const std::string& root) {
  std::ifstream meminfo(root + "/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  std::string unit;
  while (meminfo >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(meminfo, unit);
  }
  return kUnknown;
}

// As seen inside a container. No limit is "max", which fails to parse, in version 2 and a number
// beyond all memory in version 1.
int64_t LeftInCgroup(const std::string& root) {
  for (const auto& [limit_name, used_name] :
       {std::pair("memory.max", "memory.current"),
        std::pair("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")}) {
    int64_t limit = 0;
    int64_t used = 0;
    if (!(std::ifstream(root + "/sys/fs/cgroup/" + limit_name) >> limit)) continue;
    if (!(std::ifstream(root + "/sys/fs/cgroup/" + used_name) >> used)) continue;
    return std::max<int64_t>(limit - used, 0);
  }
  return kUnknown;
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  return std::min(MemAvailable(root), LeftInCgroup(root));
}

}  // namespace aft
