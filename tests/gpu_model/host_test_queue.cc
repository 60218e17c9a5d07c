#include "tests/gpu_model/test_queue.h"
#include "tests/support/cuda_on_cpu/host_queue.h"

namespace aft {

std::unique_ptr<GpuQueue> MakeTestQueue() { return std::make_unique<HostQueue>(); }

at::Device TestDevice() { return at::kCPU; }

}  // namespace aft
