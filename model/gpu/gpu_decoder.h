#ifndef AFT_MODEL_GPU_GPU_DECODER_H_
#define AFT_MODEL_GPU_GPU_DECODER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/gpu_queue.h"
#include "model/network/check_tensors.h"  // TensorMap

namespace aft {

// One step as arrays on the device: first `decode` rows of one token each, then prompt chunks.
// Token i of the decode rows is row i of all matrices; the chunks' tokens follow.
struct GpuDecoderBatch {
  kernels::cuda::StepRows decode;
  kernels::cuda::ChunkRows chunks;           // its offsets count from the first chunk's first token
  const int32_t* tokens = nullptr;           // [N] ids, or kLastSampledToken
  const int32_t* token_slots = nullptr;      // [N]
  const int64_t* token_positions = nullptr;  // [N]
  const int32_t* last_sampled = nullptr;     // [slots]
  // [output_count] tokens whose logits are wanted (-1: padding); null: the first output_count.
  const int64_t* outputs = nullptr;
  int64_t output_count = 0;
};

// The language model on a GPU: Decoder's counterpart. Owns weights and activations. Calls queue
// work on the queue's stream and return; with chunks.rows = 0 they allocate nothing and may be
// captured. Thread-compatible. Errors: INTERNAL, with LibTorch's or CUDA's text.
class GpuDecoder {
 public:
  // Errors: DATA_LOSS (CheckTensors), RESOURCE_EXHAUSTED (says what needs how much).
  static absl::StatusOr<std::unique_ptr<GpuDecoder>> Create(const NetworkConfig& config,
                                                            const TensorMap& tensors, Number format,
                                                            const GpuLimits& limits,
                                                            GpuQueue* queue);
  ~GpuDecoder();

  const NetworkConfig& config() const;
  uint64_t fingerprint() const;  // NetworkFingerprint: that of the CPU's Decoder
  int64_t weight_bytes() const;
  int64_t workspace_bytes() const;
  std::vector<StateSpec> state_specs() const;  // one per layer

  // Look-ahead of all layers: tokens per look-ahead (the same in all), floats per slot and layer.
  int64_t lookahead_rows() const;
  int64_t lookahead_floats() const;

  // Advances the sequences of `batch`. layers[i] are layer i's states; `lookahead` [layers, slots,
  // lookahead_floats()] or null. Afterwards Logits can be called.
  absl::Status Forward(const GpuDecoderBatch& batch,
                       const std::vector<kernels::cuda::State>& layers, float* lookahead,
                       int32_t slots);

  // Logits [count, vocab_size] fp32, dense, of the outputs [first, first + count) of the last
  // Forward. Valid until the next call. REQUIRES: count <= max_logit_rows().
  absl::StatusOr<const float*> Logits(int64_t first, int64_t count);
  int64_t max_logit_rows() const;

 private:
  class Impl;
  explicit GpuDecoder(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_DECODER_H_
