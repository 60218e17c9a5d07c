#include <utility>

#include "tests/gpu_model/runner_pair.h"

namespace aft {

std::unique_ptr<GpuQueue> MakeRunnerQueue(std::shared_ptr<LazyQueue::Control> control) {
  return std::make_unique<LazyQueue>(std::move(control));
}

}  // namespace aft
