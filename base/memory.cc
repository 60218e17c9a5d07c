#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_format.h"

namespace aft {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The number of the line `name` in a file of such lines. kUnknown if there is none.
int64_t NumberIn(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  int64_t number = 0;
  std::string unit;
  while (file >> key >> number) {
    if (key == name) return number;
    std::getline(file, unit);
  }
  return kUnknown;
}

// The number of bytes in the line `name` of /proc/meminfo.
int64_t OfMachine(const std::string& root, const std::string& name) {
  const int64_t kilobytes = NumberIn(root + "/proc/meminfo", name);
  return kilobytes == kUnknown ? kUnknown : kilobytes * 1024;
}

struct CgroupVersion {
  const char* limit;
  const char* used;
  const char* stat;
  const char* whole;  // what names in `stat` begin with if they count the groups within, too
};
constexpr CgroupVersion kCgroupVersions[] = {
    {"memory.max", "memory.current", "memory.stat", ""},
    {"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
     "total_"}};

struct Cgroup {
  int64_t limit = kUnknown;
  int64_t used = 0;  // without the cached files, which the kernel drops when memory is short
};

// Reads the files as a process inside a container sees them. Without a limit they hold "max", which
// fails to parse, in version 2 and a number larger than any memory in version 1.
Cgroup ReadCgroup(const std::string& root) {
  const std::string folder = root + "/sys/fs/cgroup/";
  for (const CgroupVersion& version : kCgroupVersions) {
    Cgroup cgroup;
    if (!(std::ifstream(folder + version.limit) >> cgroup.limit)) continue;
    if (!(std::ifstream(folder + version.used) >> cgroup.used)) continue;
    for (const char* list : {"active_file", "inactive_file"}) {
      const int64_t cached = NumberIn(folder + version.stat, std::string(version.whole) + list);
      if (cached != kUnknown) cgroup.used -= cached;
    }
    // The files are read one after the other, so their numbers need not fit together.
    cgroup.used = std::max<int64_t>(cgroup.used, 0);
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
