#include "tests/gpu_model/runner_pair.h"
#include "tests/gpu_model/test_queue.h"

namespace aft {

std::unique_ptr<GpuQueue> MakeRunnerQueue(std::shared_ptr<LazyQueue::Control> /*control*/) {
  return MakeTestQueue();
}

}  // namespace aft
