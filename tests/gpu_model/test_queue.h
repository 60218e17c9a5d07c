#ifndef AFT_TESTS_GPU_MODEL_TEST_QUEUE_H_
#define AFT_TESTS_GPU_MODEL_TEST_QUEUE_H_

#include <memory>

#include "ATen/core/Tensor.h"
#include "model/gpu/gpu_queue.h"
#include "tests/gpu_model/lazy_queue.h"

namespace aft {

// The GPU of a test program: the emulated one (host_test_queue.cc), which is late and fails as
// `control` says where it is given, or the machine's first (cuda_test_queue.cc), which ignores it.
std::unique_ptr<GpuQueue> MakeTestQueue(std::shared_ptr<LazyQueue::Control> control = nullptr);
at::Device TestDevice();

}  // namespace aft

#endif  // AFT_TESTS_GPU_MODEL_TEST_QUEUE_H_
