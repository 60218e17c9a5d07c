#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/kernel_status.h"
#include "model/kernels/cuda/attention/attention.h"
#include "model/mixers/families.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

class GpuAttentionMixer : public GpuMixer {
 public:
  GpuAttentionMixer(const AttentionTables& tables, at::Device device) : params_(tables.params) {
    if (tables.score_weight.defined()) {
      score_weight_ = tables.score_weight.to(device);
      params_.score_weight = score_weight_.const_data_ptr<float>();
    }
    if (tables.position_keys.defined()) {
      position_keys_ = tables.position_keys.to(device);
      params_.position_keys = position_keys_.const_data_ptr<float>();
    }
  }

  StateSpec state_spec() const override { return AttentionStateSpec(params_); }

  int64_t weight_bytes() const override {
    return DeviceBytes(score_weight_) + DeviceBytes(position_keys_);
  }

  int64_t workspace_floats(const GpuLimits& limits) const override {
    const int64_t tokens = cuda::AttentionWorkspaceFloats(params_, limits.tokens);
    if (!params_.causal) return tokens;
    return std::max(tokens, cuda::AttentionStepWorkspaceFloats(params_, limits.slots));
  }

  absl::Status Step(const cuda::StepRows& rows, cuda::In packed, cuda::State state,
                    float* /*slot_scratch*/, cuda::Out out, float* workspace,
                    cuda::Stream stream) const override {
    AFT_CHECK(params_.causal);
    return KernelStatus(cuda::AttentionStep(params_, rows, packed, state, out, workspace, stream),
                        "AttentionStep");
  }

  absl::Status Prefill(const cuda::ChunkRows& chunks, cuda::In packed, cuda::State state,
                       cuda::Out out, float* workspace, cuda::Stream stream) const override {
    AFT_CHECK(params_.causal);
    return KernelStatus(
        cuda::AttentionPrefill(params_, chunks, packed, state, out, workspace, stream),
        "AttentionPrefill");
  }

  absl::Status Encode(const cuda::Texts& texts, cuda::In packed, cuda::Out out, float* workspace,
                      cuda::Stream stream) const override {
    return KernelStatus(cuda::AttentionEncode(params_, texts, packed, out, workspace, stream),
                        "AttentionEncode");
  }

 private:
  at::Tensor score_weight_;   // on the device; undefined if the mixer has none
  at::Tensor position_keys_;  // likewise
  kernels::AttentionParams params_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuAttentionMixer(const MixerConfig& config,
                                                                int64_t hid,
                                                                const MixerTables& tables,
                                                                const MixerOptions& options,
                                                                at::Device device) {
  AFT_ASSIGN_OR_RETURN(const AttentionTables folded,
                       FoldAttentionTables(config, hid, tables, options));
  return std::make_unique<GpuAttentionMixer>(folded, device);
}

}  // namespace aft
