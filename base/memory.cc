#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace aft {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The value of the line `name` of /proc/meminfo, in bytes.
int64_t OfMachine(const std::string& root, const std::string& name) {
  std::ifstream meminfo(root + "/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  std::string unit;
  while (meminfo >> key >> kilobytes) {
    if (key == name) return kilobytes * 1024;
    std::getline(meminfo, unit);
  }
  return kUnknown;
}

struct Cgroup {
  int64_t limit = kUnknown;
  int64_t used = 0;
};

// Reads the files as a process inside a container sees them. Without a limit they hold "max", which
// fails to parse, in version 2 and a number larger than any memory in version 1.
Cgroup ReadCgroup(const std::string& root) {
  for (const auto& [limit_name, used_name] :
       {std::pair("memory.max", "memory.current"),
        std::pair("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")}) {
    Cgroup cgroup;
    if (!(std::ifstream(root + "/sys/fs/cgroup/" + limit_name) >> cgroup.limit)) continue;
    if (!(std::ifstream(root + "/sys/fs/cgroup/" + used_name) >> cgroup.used)) continue;
    return cgroup;
  }
  return {};
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  const Cgroup cgroup = ReadCgroup(root);
  return std::min(OfMachine(root, "MemAvailable:"),
                  std::max<int64_t>(cgroup.limit - cgroup.used, 0));
}

int64_t MemoryLimit(const std::string& root) {
  return std::min(OfMachine(root, "MemTotal:"), ReadCgroup(root).limit);
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace aft
