#include "model/gpu/gpu_aft_mixer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/kernel_status.h"
#include "model/mixers/aft_band.h"
#include "model/mixers/state_specs.h"

namespace aft {

namespace cuda = kernels::cuda;

std::unique_ptr<GpuMixer> GpuAftMixer::Create(const MixerConfig& config, int64_t hid,
                                              const MixerTables& tables, at::Device device) {
  return std::unique_ptr<GpuMixer>(new GpuAftMixer(config, hid, tables, device));
}

GpuAftMixer::GpuAftMixer(const MixerConfig& config, int64_t hid, const MixerTables& tables,
                         at::Device device) {
  const AftBand band = FoldAftBand(config, tables);
  if (band.window > 0) band_ = ToDevice(band.w, device);
  model_.hid = hid;
  model_.window = band.window;
  model_.prefix_block = config.prefix_block;
  model_.ring = config.ring;
  model_.causal = band.causal;
  model_.bias = band_.defined() ? band_.const_data_ptr<float>() : nullptr;
  model_.bias_rows = band.rows;
  model_.wide = std::any_of(band.w.begin(), band.w.end(),
                            [](float w) { return std::abs(w) > kernels::kNarrowBias; });
  // Sums for later tokens are sums over one prefix: that of a block would end before them.
  if (model_.causal && model_.prefix_block == 0) lookahead_rows_ = cuda::AftLookaheadRows(model_);
}

StateSpec GpuAftMixer::state_spec() const { return AftStateSpec(model_.layout()); }

int64_t GpuAftMixer::weight_bytes() const { return DeviceBytes(band_); }

int64_t GpuAftMixer::workspace_floats(const GpuLimits& limits) const {
  const int64_t encode = cuda::AftEncodeWorkspaceFloats(model_, limits.rows, limits.tokens);
  if (!model_.causal) return encode;
  return std::max(encode, cuda::AftPrefillWorkspaceFloats(model_, limits.rows, limits.tokens));
}

int64_t GpuAftMixer::slot_scratch_floats() const {
  return lookahead_rows_ > 0 ? cuda::AftLookaheadFloats(model_, lookahead_rows_) : 0;
}

absl::Status GpuAftMixer::Step(const cuda::StepRows& rows, cuda::In packed, cuda::State state,
                               float* slot_scratch, cuda::Out out, float* /*workspace*/,
                               cuda::Stream stream) const {
  AFT_CHECK(model_.causal);
  cuda::AftLookahead ahead;
  if (slot_scratch != nullptr && rows.age != nullptr && lookahead_rows_ > 0) {
    ahead = {lookahead_rows_, slot_scratch, slot_scratch_floats()};
  }
  return KernelStatus(cuda::AftStep(model_, rows, packed, state, ahead, out, stream), "AftStep");
}

absl::Status GpuAftMixer::Prefill(const cuda::ChunkRows& chunks, cuda::In packed, cuda::State state,
                                  cuda::Out out, float* workspace, cuda::Stream stream) const {
  AFT_CHECK(model_.causal);
  return KernelStatus(cuda::AftPrefill(model_, chunks, packed, state, out, workspace, stream),
                      "AftPrefill");
}

absl::Status GpuAftMixer::Encode(const cuda::Texts& texts, cuda::In packed, cuda::Out out,
                                 float* workspace, cuda::Stream stream) const {
  return KernelStatus(cuda::AftEncode(model_, texts, packed, out, workspace, stream), "AftEncode");
}

}  // namespace aft
