#include "model/gpu/gpu_attention_mixer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/kernel_status.h"
#include "model/mixers/attention_tables.h"
#include "model/mixers/state_specs.h"

namespace aft {

namespace cuda = kernels::cuda;

absl::StatusOr<std::unique_ptr<GpuMixer>> GpuAttentionMixer::Create(const MixerConfig& config,
                                                                    int64_t hid,
                                                                    const MixerTables& tables,
                                                                    const MixerOptions& options,
                                                                    at::Device device) {
  AFT_ASSIGN_OR_RETURN(const AttentionTables folded,
                       FoldAttentionTables(config, hid, tables, options));
  std::unique_ptr<GpuAttentionMixer> mixer(new GpuAttentionMixer);
  mixer->params_ = folded.params;
  if (folded.score_weight.defined()) {
    mixer->score_weight_ = ToDevice(folded.score_weight, device);
    mixer->params_.score_weight = mixer->score_weight_.const_data_ptr<float>();
  }
  if (folded.position_keys.defined()) {
    mixer->position_keys_ = ToDevice(folded.position_keys, device);
    mixer->params_.position_keys = mixer->position_keys_.const_data_ptr<float>();
  }
  return mixer;
}

StateSpec GpuAttentionMixer::state_spec() const { return AttentionStateSpec(params_); }

int64_t GpuAttentionMixer::weight_bytes() const {
  return DeviceBytes(score_weight_) + DeviceBytes(position_keys_);
}

int64_t GpuAttentionMixer::workspace_floats(const GpuLimits& limits) const {
  const int64_t encode = cuda::AttentionEncodeWorkspaceFloats(params_, limits.rows, limits.tokens);
  if (!params_.causal) return encode;
  return std::max({encode, cuda::AttentionStepWorkspaceFloats(params_, limits.rows),
                   cuda::AttentionPrefillWorkspaceFloats(params_, limits.rows, limits.tokens)});
}

absl::Status GpuAttentionMixer::Step(const cuda::StepRows& rows, cuda::In packed, cuda::State state,
                                     float* /*slot_scratch*/, cuda::Out out, float* workspace,
                                     cuda::Stream stream) const {
  AFT_CHECK(params_.causal);
  return KernelStatus(cuda::AttentionStep(params_, rows, packed, state, out, workspace, stream),
                      "AttentionStep");
}

absl::Status GpuAttentionMixer::Prefill(const cuda::ChunkRows& chunks, cuda::In packed,
                                        cuda::State state, cuda::Out out, float* workspace,
                                        cuda::Stream stream) const {
  AFT_CHECK(params_.causal);
  return KernelStatus(
      cuda::AttentionPrefill(params_, chunks, packed, state, out, workspace, stream),
      "AttentionPrefill");
}

absl::Status GpuAttentionMixer::Encode(const cuda::Texts& texts, cuda::In packed, cuda::Out out,
                                       float* workspace, cuda::Stream stream) const {
  return KernelStatus(cuda::AttentionEncode(params_, texts, packed, out, workspace, stream),
                      "AttentionEncode");
}

}  // namespace aft
