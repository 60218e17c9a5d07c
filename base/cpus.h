#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// The number of CPUs that this process may keep busy: the CPUs that it may run on, or the quota of
// its cgroup (version 2 or 1), rounded up, when that is less. At least 1. `root` is the folder that
// has /sys.
int AvailableCpus(const std::string& root = "");

// The CPUs of a list such as "0-3,8", the form that taskset accepts, in the order of the list.
// INVALID_ARGUMENT when `list` has another form, names a CPU twice, or names one that this thread
// may not run on.
absl::StatusOr<std::vector<int>> ParseCpus(absl::string_view list);

// The CPU time that this thread has used.
std::chrono::nanoseconds ThreadCpuTime();

}  // namespace aft
