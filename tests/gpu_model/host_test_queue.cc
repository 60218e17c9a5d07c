#include <utility>

#include "tests/gpu_model/test_queue.h"

namespace aft {

std::unique_ptr<GpuQueue> MakeTestQueue(std::shared_ptr<LazyQueue::Control> control) {
  if (control == nullptr) return std::make_unique<HostQueue>();
  return std::make_unique<LazyQueue>(std::move(control));
}

at::Device TestDevice() { return at::kCPU; }

}  // namespace aft
