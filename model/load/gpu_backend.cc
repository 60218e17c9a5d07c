#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/cuda_queue.h"
#include "model/gpu/gpu_decoder.h"
#include "model/gpu/gpu_encoder.h"
#include "model/gpu/gpu_encoder_runner.h"
#include "model/gpu/gpu_model_runner.h"
#include "model/load/backend.h"

namespace aft {
namespace {

Number FormatOf(const LoadOptions& options) {
  if (options.weight_format == "bf16") return Number::kBf16;
  if (options.weight_format == "fp16") return Number::kFp16;
  AFT_CHECK(options.weight_format == "fp32");
  return Number::kFp32;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadGpuRunner(const LoadOptions& options, int index,
                                                           const Checkpoint& checkpoint) {
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<GpuQueue> queue, OpenCudaQueue(index));
  AFT_ASSIGN_OR_RETURN(
      std::unique_ptr<GpuDecoder> decoder,
      GpuDecoder::Create(checkpoint.config, checkpoint.tensors, FormatOf(options),
                         {.rows = options.slots, .tokens = options.max_step_tokens}, queue.get()));
  GpuModelRunner::Options runner;
  runner.slots = options.slots;
  runner.max_step_tokens = options.max_step_tokens;
  runner.weight_format = options.weight_format;
  return GpuModelRunner::Create(std::move(queue), std::move(decoder), runner);
}

absl::StatusOr<std::unique_ptr<EncoderRunner>> LoadGpuEncoder(const LoadOptions& options, int index,
                                                              const Checkpoint& checkpoint) {
  AFT_ASSIGN_OR_RETURN(std::unique_ptr<GpuQueue> queue, OpenCudaQueue(index));
  AFT_ASSIGN_OR_RETURN(
      std::unique_ptr<GpuEncoder> encoder,
      GpuEncoder::Create(checkpoint.config, checkpoint.tensors, FormatOf(options),
                         {.rows = options.max_batch_rows, .tokens = options.max_batch_tokens},
                         queue.get()));
  GpuEncoderRunner::Options runner;
  runner.max_batch_rows = options.max_batch_rows;
  runner.max_batch_tokens = options.max_batch_tokens;
  runner.weight_format = options.weight_format;
  return GpuEncoderRunner::Create(std::move(queue), std::move(encoder), runner);
}

}  // namespace aft
