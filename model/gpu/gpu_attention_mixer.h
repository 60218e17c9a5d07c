#ifndef AFT_MODEL_GPU_GPU_ATTENTION_MIXER_H_
#define AFT_MODEL_GPU_GPU_ATTENTION_MIXER_H_

#include <memory>

#include "model/gpu/gpu_mixer.h"
#include "model/kernels/cuda/attention/attention.h"

namespace aft {

// The softmax attentions: AttentionMixer's counterpart.
class GpuAttentionMixer : public GpuMixer {
 public:
  // INVALID_ARGUMENT: FoldAttentionTables.
  static absl::StatusOr<std::unique_ptr<GpuMixer>> Create(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          const MixerOptions& options,
                                                          at::Device device);

  StateSpec state_spec() const override;
  int64_t weight_bytes() const override;
  int64_t workspace_floats(const GpuLimits& limits) const override;
  absl::Status Step(const kernels::cuda::StepRows& rows, kernels::cuda::In packed,
                    kernels::cuda::State state, float* slot_scratch, kernels::cuda::Out out,
                    float* workspace, kernels::cuda::Stream stream) const override;
  absl::Status Prefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In packed,
                       kernels::cuda::State state, kernels::cuda::Out out, float* workspace,
                       kernels::cuda::Stream stream) const override;
  absl::Status Encode(const kernels::cuda::Texts& texts, kernels::cuda::In packed,
                      kernels::cuda::Out out, float* workspace,
                      kernels::cuda::Stream stream) const override;

 private:
  GpuAttentionMixer() = default;

  at::Tensor score_weight_;   // on the device; undefined where there is none
  at::Tensor position_keys_;  // likewise
  kernels::AttentionParams params_;
};

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_ATTENTION_MIXER_H_
