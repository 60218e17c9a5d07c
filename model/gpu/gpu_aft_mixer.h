#ifndef AFT_MODEL_GPU_GPU_AFT_MIXER_H_
#define AFT_MODEL_GPU_GPU_AFT_MIXER_H_

#include <memory>

#include "model/gpu/gpu_mixer.h"
#include "model/kernels/cuda/aft/aft.h"

namespace aft {

// AFT-simple, AFT-local and AFT-full: AftMixer's counterpart.
class GpuAftMixer : public GpuMixer {
 public:
  static std::unique_ptr<GpuMixer> Create(const MixerConfig& config, int64_t hid,
                                          const MixerTables& tables, at::Device device);

  StateSpec state_spec() const override;
  int64_t weight_bytes() const override;
  int64_t workspace_floats(const GpuLimits& limits) const override;
  int64_t lookahead_rows() const override { return lookahead_rows_; }
  int64_t slot_scratch_floats() const override;
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
  GpuAftMixer(const MixerConfig& config, int64_t hid, const MixerTables& tables, at::Device device);

  at::Tensor band_;  // on the device; undefined when the window is 0
  kernels::cuda::AftModel model_;
  int64_t lookahead_rows_ = 0;
};

}  // namespace aft

#endif  // AFT_MODEL_GPU_GPU_AFT_MIXER_H_
