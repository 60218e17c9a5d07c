#pragma once

#include <cstdint>
#include <string>

namespace aft {

// Returns the bytes that this process may still allocate without swapping: MemAvailable of
// /proc/meminfo, or what is left of the limit of the cgroup (version 2 or 1) if that is less.
// Cached files count as available in both. Returns a large number if neither can be read. `root` is
// the folder that has /proc and /sys.
int64_t AvailableMemory(const std::string& root = "");

// Returns the bytes that this process may have in total: MemTotal, or the limit of the cgroup if
// that is less.
int64_t MemoryLimit(const std::string& root = "");

// Formats a size like "12.5 MiB".
std::string Mebibytes(int64_t bytes);

}  // namespace aft
