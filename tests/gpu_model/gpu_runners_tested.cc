#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "model/gpu/gpu_encoder_runner.h"
#include "model/gpu/gpu_model_runner.h"
#include "model/kernels/cuda/types.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/property/tested_runners.h"

namespace aft {
namespace {

absl::StatusOr<LoadedModel> Load(const LoadOptions& options, const NetworkConfig& config,
                                 const TensorMap& tensors) {
  const bool encoder = config.architecture != Architecture::kDecoderLm;
  const GpuLimits limits =
      encoder ? GpuLimits{.rows = options.max_batch_rows, .tokens = options.max_batch_tokens}
              : GpuStepShapes(options.slots, options.max_step_tokens).limits();
  std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<GpuNetwork> network,
                       GpuNetwork::Create(config, tensors, Number::kFp32, limits, queue.get()));
  LoadedModel model;
  if (encoder) {
    AFT_ASSIGN_OR_RETURN(model.encoder,
                         GpuEncoderRunner::Create(
                             std::move(queue), std::move(network),
                             {.max_batch_rows = limits.rows, .max_batch_tokens = limits.tokens}));
  } else {
    AFT_ASSIGN_OR_RETURN(model.runner,
                         GpuModelRunner::Create(
                             std::move(queue), std::move(network),
                             {.slots = options.slots, .max_step_tokens = options.max_step_tokens}));
  }
  return model;
}

}  // namespace

const RunnerDevice& TestedRunners() {
  static const RunnerDevice device = {
      &Load,
      /*same_bits=*/false,
      tolerance::kLogits.each,
      TestDevice().is_cuda() ? tolerance::kVectorsGpu : tolerance::kUnitVectors,
      /*slow=*/!TestDevice().is_cuda() && std::getenv("AFT_CUDA_FULL") == nullptr,
      kernels::cuda::kMaxSequenceTokens};
  return device;
}

}  // namespace aft
