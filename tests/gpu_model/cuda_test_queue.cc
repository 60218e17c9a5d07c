#include <utility>

#include "base/check.h"
#include "gtest/gtest.h"
#include "model/gpu/cuda_queue.h"
#include "tests/gpu_model/test_queue.h"

namespace aft {

std::unique_ptr<GpuQueue> MakeTestQueue(std::shared_ptr<LazyQueue::Control> /*control*/) {
  absl::StatusOr<std::unique_ptr<GpuQueue>> queue = OpenCudaQueue(0);
  EXPECT_TRUE(queue.ok()) << queue.status();
  AFT_CHECK(queue.ok());
  return *std::move(queue);
}

at::Device TestDevice() {
  static const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  return queue->device();
}

}  // namespace aft
