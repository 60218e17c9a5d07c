#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/kernel_status.h"
#include "model/kernels/cuda/conv/conv.h"
#include "model/mixers/families.h"
#include "model/mixers/tables.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

class GpuConvMixer : public GpuMixer {
 public:
  GpuConvMixer(const MixerConfig& config, int64_t hid, const ConvFilter& filter, at::Device device)
      : filter_(ToDevice(std::vector<float>(filter.w.begin(), filter.w.end()), device)) {
    model_.hid = hid;
    model_.heads = filter.heads;
    model_.taps = config.window;
    model_.causal = config.causal;
    model_.grid = config.grid;
    model_.filter = filter_.const_data_ptr<float>();
    model_.wide = filter.wide;
    model_.ring = config.ring;
    if (model_.grid) max_grid_width_ = cuda::ConvMaxGridWidth(model_);
  }

  StateSpec state_spec() const override { return ConvStateSpec(model_.layout()); }

  int64_t weight_bytes() const override { return DeviceBytes(filter_); }

  int64_t workspace_floats(const GpuLimits& limits) const override {
    return cuda::ConvWorkspaceFloats(model_, limits.rows, limits.tokens);
  }

  int64_t max_grid_width() const override { return max_grid_width_; }

  absl::Status Step(const cuda::StepRows& rows, cuda::In packed, cuda::State state,
                    float* /*slot_scratch*/, cuda::Out out, float* /*workspace*/,
                    cuda::Stream stream) const override {
    AFT_CHECK(model_.causal);
    return KernelStatus(cuda::ConvStep(model_, rows, packed, state, out, stream), "ConvStep");
  }

  absl::Status Prefill(const cuda::ChunkRows& chunks, cuda::In packed, cuda::State state,
                       cuda::Out out, float* workspace, cuda::Stream stream) const override {
    AFT_CHECK(model_.causal);
    return KernelStatus(cuda::ConvPrefill(model_, chunks, packed, state, out, workspace, stream),
                        "ConvPrefill");
  }

  absl::Status Encode(const cuda::Texts& texts, cuda::In packed, cuda::Out out, float* workspace,
                      cuda::Stream stream) const override {
    AFT_CHECK(!model_.grid || texts.grid_width > 0);
    return KernelStatus(cuda::ConvEncode(model_, texts, packed, out, workspace, stream),
                        "ConvEncode");
  }

 private:
  at::Tensor filter_;  // on the device
  cuda::ConvModel model_;
  int64_t max_grid_width_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuConvMixer(const MixerConfig& config, int64_t hid,
                                                           const MixerTables& tables,
                                                           at::Device device) {
  AFT_ASSIGN_OR_RETURN(const ConvFilter filter, FoldConvFilter(config, tables));
  return std::make_unique<GpuConvMixer>(config, hid, filter, device);
}

}  // namespace aft
