#ifndef AFT_MODEL_GPU_GPU_ENCODER_H_
#define AFT_MODEL_GPU_GPU_ENCODER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/gpu/gpu_decoder.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/gpu_queue.h"
#include "model/network/check_tensors.h"  // TensorMap

namespace aft {

// Whole texts as arrays on the device.
struct GpuEncoderBatch {
  kernels::cuda::Texts texts;
  const int32_t* tokens = nullptr;           // [N] ids
  const int64_t* token_positions = nullptr;  // [N], each in its text
};

// The encoder on a GPU: Encoder's counterpart. Owns weights and activations. Calls queue work on
// the queue's stream and return. Thread-compatible. Errors: INTERNAL, with LibTorch's or CUDA's
// text.
class GpuEncoder {
 public:
  // Errors: DATA_LOSS (CheckTensors), RESOURCE_EXHAUSTED (says what needs how much).
  static absl::StatusOr<std::unique_ptr<GpuEncoder>> Create(const NetworkConfig& config,
                                                            const TensorMap& tensors, Number format,
                                                            const GpuLimits& limits,
                                                            GpuQueue* queue);
  ~GpuEncoder();

  const NetworkConfig& config() const;
  int64_t weight_bytes() const;
  int64_t workspace_bytes() const;

  // The vectors [N, d_model] fp32, dense, of all tokens. Valid until the next call.
  absl::StatusOr<const float*> Forward(const GpuEncoderBatch& batch);

 private:
  class Impl;
  explicit GpuEncoder(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_ENCODER_H_
