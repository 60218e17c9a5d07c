#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "model/gpu/gpu_queue.h"

namespace aft {

// Opens a stream of the GPU `device`, which no other queue has during this one's lifetime; 0 is the
// first GPU that CUDA_VISIBLE_DEVICES leaves. It also sets up LibTorch for it: fp32 products in
// fp32 (no TF32), 16-bit products summed in fp32, the same bits from run to run. A queue's graphs
// share their memory, because they run one after the other. Errors carry CUDA's text. After an
// error that CUDA does not recover from (an illegal address) every later call fails too.
//
// Errors of this call: UNAVAILABLE (no driver or no device), NOT_FOUND (no such device; the message
// has the number of devices), FAILED_PRECONDITION (older than compute capability 8.0, or no
// CUBLAS_WORKSPACE_CONFIG in the environment: main sets it, because a process with threads must
// not).
absl::StatusOr<std::unique_ptr<GpuQueue>> OpenCudaQueue(int device);

}  // namespace aft
