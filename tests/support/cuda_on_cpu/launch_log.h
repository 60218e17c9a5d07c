#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_on_cpu {

// Returns the number of launches of this process so far.
int64_t LaunchCount();

// Counts a launch, and appends a line to the file that AFT_LAUNCH_LOG names, for
// tests/cuda/resources.py:
//   threads of a block <tab> bytes of dynamic shared memory <tab> the kernel's name, demangled
// Each different line is written once. If the variable is not set, it only counts.
void LogLaunch(const void* kernel, size_t threads, size_t shared_bytes);

}  // namespace cuda_on_cpu
