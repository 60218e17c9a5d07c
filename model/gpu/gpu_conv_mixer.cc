#include "model/gpu/gpu_conv_mixer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/kernel_status.h"
#include "model/mixers/conv_filter.h"
#include "model/mixers/state_specs.h"

namespace aft {

namespace cuda = kernels::cuda;

absl::StatusOr<std::unique_ptr<GpuMixer>> GpuConvMixer::Create(const MixerConfig& config,
                                                               int64_t hid,
                                                               const MixerTables& tables,
                                                               at::Device device) {
  AFT_ASSIGN_OR_RETURN(const ConvFilter filter, FoldConvFilter(config, tables));
  std::unique_ptr<GpuConvMixer> mixer(new GpuConvMixer);
  std::vector<float> w(filter.w.size());
  std::transform(filter.w.begin(), filter.w.end(), w.begin(),
                 [](double x) { return static_cast<float>(x); });
  mixer->filter_ = ToDevice(w, device);
  mixer->model_.hid = hid;
  mixer->model_.heads = filter.heads;
  mixer->model_.taps = config.window;
  mixer->model_.causal = config.causal;
  mixer->model_.grid = config.grid;
  mixer->model_.filter = mixer->filter_.const_data_ptr<float>();
  mixer->model_.wide = filter.wide;
  mixer->model_.ring = config.ring;
  return mixer;
}

StateSpec GpuConvMixer::state_spec() const { return ConvStateSpec(model_.layout()); }

int64_t GpuConvMixer::weight_bytes() const { return DeviceBytes(filter_); }

int64_t GpuConvMixer::workspace_floats(const GpuLimits& limits) const {
  const int64_t encode = cuda::ConvEncodeWorkspaceFloats(model_, limits.rows, limits.tokens);
  if (!model_.causal) return encode;
  return std::max(encode, cuda::ConvPrefillWorkspaceFloats(model_, limits.rows, limits.tokens));
}

absl::Status GpuConvMixer::Step(const cuda::StepRows& rows, cuda::In packed, cuda::State state,
                                float* /*slot_scratch*/, cuda::Out out, float* /*workspace*/,
                                cuda::Stream stream) const {
  AFT_CHECK(model_.causal);
  return KernelStatus(cuda::ConvStep(model_, rows, packed, state, out, stream), "ConvStep");
}

absl::Status GpuConvMixer::Prefill(const cuda::ChunkRows& chunks, cuda::In packed,
                                   cuda::State state, cuda::Out out, float* workspace,
                                   cuda::Stream stream) const {
  AFT_CHECK(model_.causal);
  return KernelStatus(cuda::ConvPrefill(model_, chunks, packed, state, out, workspace, stream),
                      "ConvPrefill");
}

absl::Status GpuConvMixer::Encode(const cuda::Texts& texts, cuda::In packed, cuda::Out out,
                                  float* workspace, cuda::Stream stream) const {
  AFT_CHECK(!model_.grid || texts.grid_width > 0);
  return KernelStatus(cuda::ConvEncode(model_, texts, packed, out, workspace, stream),
                      "ConvEncode");
}

}  // namespace aft
