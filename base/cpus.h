#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// CPUs that this process may keep busy: those it may run on, or the quota of its cgroup (version 2
// or 1), rounded up, when that is less. At least 1. `root`: where /sys is.
int AvailableCpus(const std::string& root = "");

// The CPUs of a list such as "0-3,8", taskset's form, in its order. INVALID_ARGUMENT: it is none,
// names a CPU twice, or one that this thread may not run on.
absl::StatusOr<std::vector<int>> ParseCpus(absl::string_view list);

// How long this thread has had a core.
std::chrono::nanoseconds ThreadCpuTime();

}  // namespace aft
