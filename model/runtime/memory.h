#ifndef AFT_MODEL_RUNTIME_MEMORY_H_
#define AFT_MODEL_RUNTIME_MEMORY_H_

#include <cstdint>

namespace aft {

// Bytes that this process may still allocate without swapping: MemAvailable of /proc/meminfo, or
// what is left of the cgroup's limit when that is less. A large number when neither can be read.
int64_t AvailableMemory();

}  // namespace aft

#endif  // AFT_MODEL_RUNTIME_MEMORY_H_
