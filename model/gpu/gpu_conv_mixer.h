#ifndef AFT_MODEL_GPU_GPU_CONV_MIXER_H_
#define AFT_MODEL_GPU_GPU_CONV_MIXER_H_

#include <memory>

#include "model/gpu/gpu_mixer.h"
#include "model/kernels/cuda/conv/conv.h"

namespace aft {

// AFT-conv: ConvMixer's counterpart.
class GpuConvMixer : public GpuMixer {
 public:
  // DATA_LOSS: FoldConvFilter.
  static absl::StatusOr<std::unique_ptr<GpuMixer>> Create(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
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
  GpuConvMixer() = default;

  at::Tensor filter_;  // on the device
  kernels::cuda::ConvModel model_;
};

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_CONV_MIXER_H_
