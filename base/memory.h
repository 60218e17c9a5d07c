#pragma once

#include <cstdint>
#include <string>

namespace aft {

// Bytes that this process may still allocate without swapping: MemAvailable of /proc/meminfo, or
// what is left of the limit of the cgroup (version 2 or 1) when that is less. Cached files count as
// available in both. A large number when neither can be read. `root` is the folder that has /proc
// and /sys.
int64_t AvailableMemory(const std::string& root = "");

// Bytes that this process may have in total: MemTotal, or the limit of the cgroup when that is
// less.
int64_t MemoryLimit(const std::string& root = "");

// Formats a size like "12.5 MiB".
std::string Mebibytes(int64_t bytes);

}  // namespace aft
