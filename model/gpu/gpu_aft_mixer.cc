#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/kernel_status.h"
#include "model/kernels/cuda/aft/aft.h"
#include "model/mixers/families.h"
#include "model/mixers/tables.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

// AFT-simple, AFT-local and AFT-full.
class GpuAftMixer : public GpuMixer {
 public:
  GpuAftMixer(const MixerConfig& config, int64_t hid, const AftBand& band, at::Device device) {
    model_.hid = hid;
    model_.window = band.window;
    model_.prefix_block = config.prefix_block;
    model_.ring = config.ring;
    model_.causal = config.causal;
    if (band.w.defined()) {
      band_ = band.w.to(device);
      model_.bias = band_.const_data_ptr<float>();
      model_.bias_rows = band_.size(0);
      model_.wide = band.w.abs().gt(kernels::kNarrowBias).any().item<bool>();
    }
    // Look-ahead sums cover one prefix. With prefix blocks, a block's prefix would end before the
    // tokens that they are for.
    if (model_.causal && model_.prefix_block == 0) {
      lookahead_rows_ = cuda::AftLookaheadRows(model_);
    }
  }

  StateSpec state_spec() const override { return AftStateSpec(model_.layout()); }

  int64_t weight_bytes() const override { return DeviceBytes(band_); }

  int64_t workspace_floats(const GpuLimits& limits) const override {
    return cuda::AftEncodeWorkspaceFloats(model_, limits.rows, limits.tokens);
  }

  int64_t lookahead_rows() const override { return lookahead_rows_; }

  int64_t slot_scratch_floats() const override {
    return lookahead_rows_ > 0 ? cuda::AftLookaheadFloats(model_, lookahead_rows_) : 0;
  }

  absl::Status Step(const cuda::StepRows& rows, cuda::In packed, cuda::State state,
                    float* slot_scratch, cuda::Out out, float* /*workspace*/,
                    cuda::Stream stream) const override {
    AFT_CHECK(model_.causal);
    cuda::AftLookahead ahead;
    if (slot_scratch != nullptr && rows.age != nullptr && lookahead_rows_ > 0) {
      ahead = {lookahead_rows_, slot_scratch, slot_scratch_floats()};
    }
    return KernelStatus(cuda::AftStep(model_, rows, packed, state, ahead, out, stream), "AftStep");
  }

  absl::Status Prefill(const cuda::ChunkRows& chunks, cuda::In packed, cuda::State state,
                       cuda::Out out, float* workspace, cuda::Stream stream) const override {
    AFT_CHECK(model_.causal);
    return KernelStatus(cuda::AftPrefill(model_, chunks, packed, state, out, workspace, stream),
                        "AftPrefill");
  }

  absl::Status Encode(const cuda::Texts& texts, cuda::In packed, cuda::Out out, float* workspace,
                      cuda::Stream stream) const override {
    return KernelStatus(cuda::AftEncode(model_, texts, packed, out, workspace, stream),
                        "AftEncode");
  }

 private:
  at::Tensor band_;  // on the device; undefined when the window is 0
  cuda::AftModel model_;
  int64_t lookahead_rows_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuAftMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          at::Device device) {
  AFT_ASSIGN_OR_RETURN(const AftBand band, CheckedAftBand(config, tables));
  return std::make_unique<GpuAftMixer>(config, hid, band, device);
}

}  // namespace aft
