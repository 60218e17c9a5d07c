#pragma once

#include <string>

namespace aft {

// CPUs that this process may keep busy: those it may run on, or the quota of its cgroup (version 2
// or 1), rounded up, when that is less. At least 1. `root`: where /sys is.
int AvailableCpus(const std::string& root = "");

}  // namespace aft
