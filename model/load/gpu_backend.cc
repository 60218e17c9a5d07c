#include <utility>

#include "base/status_macros.h"
#include "model/gpu/cuda_queue.h"
#include "model/gpu/gpu_encoder_runner.h"
#include "model/gpu/gpu_model_runner.h"
#include "model/gpu/gpu_network.h"
#include "model/load/backend.h"
#include "model/load/initial_states.h"

namespace aft {
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadGpuRunner(const LoadOptions& options,
                                                           Number format, int index,
                                                           const CheckpointFile& checkpoint,
                                                           std::vector<InitialState>& states) {
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<GpuQueue> queue, OpenCudaQueue(index));
  AFT_ASSIGN_OR_RETURN(
      std::unique_ptr<GpuNetwork> network,
      GpuNetwork::Create(checkpoint.config, checkpoint.tensors, format,
                         GpuStepShapes(options.slots, options.max_step_tokens).limits(),
                         queue.get()));
  AFT_ASSIGN_OR_RETURN(states, ReadInitialStates(options.checkpoint_dir, checkpoint.config,
                                                 network->state_specs(), network->fingerprint()));
  GpuModelRunner::Options runner;
  runner.slots = options.slots;
  runner.max_step_tokens = options.max_step_tokens;
  runner.kept_bytes = options.prefix_cache_bytes;
  return GpuModelRunner::Create(std::move(queue), std::move(network), runner);
}

absl::StatusOr<std::unique_ptr<EncoderRunner>> LoadGpuEncoder(const LoadOptions& options,
                                                              Number format, int index,
                                                              const CheckpointFile& checkpoint) {
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<GpuQueue> queue, OpenCudaQueue(index));
  AFT_ASSIGN_OR_RETURN(
      std::unique_ptr<GpuNetwork> network,
      GpuNetwork::Create(checkpoint.config, checkpoint.tensors, format,
                         {.rows = options.max_batch_rows, .tokens = options.max_batch_tokens},
                         queue.get()));
  GpuEncoderRunner::Options runner;
  runner.max_batch_rows = options.max_batch_rows;
  runner.max_batch_tokens = options.max_batch_tokens;
  return GpuEncoderRunner::Create(std::move(queue), std::move(network), runner);
}

}  // namespace aft
