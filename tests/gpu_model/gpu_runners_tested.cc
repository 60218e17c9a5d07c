#include <utility>

#include "base/status_macros.h"
#include "model/gpu/gpu_model_runner.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/property/tested_runners.h"
#include "tests/support/tolerances.h"

namespace aft {

const RunnerDevice& TestedRunners() {
  static const RunnerDevice device = {
      [](const LoadOptions& options, const NetworkConfig& config,
         const TensorMap& tensors) -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
        std::unique_ptr<GpuQueue> queue = MakeTestQueue();
        AFT_ASSIGN_OR_RETURN(
            std::unique_ptr<GpuNetwork> network,
            GpuNetwork::Create(config, tensors, Number::kFp32,
                               {.rows = options.slots, .tokens = options.max_step_tokens},
                               queue.get()));
        return GpuModelRunner::Create(
            std::move(queue), std::move(network),
            {.slots = options.slots, .max_step_tokens = options.max_step_tokens});
      },
      /*same_bits=*/false, tolerance::kLogits.each};
  return device;
}

}  // namespace aft
