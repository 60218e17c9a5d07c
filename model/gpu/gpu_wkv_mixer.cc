#include "base/check.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_mixer.h"
#include "model/gpu/kernel_status.h"
#include "model/kernels/cuda/wkv/wkv.h"
#include "model/mixers/families.h"

namespace aft {

namespace cuda = kernels::cuda;

namespace {

// RWKV-4 and RWKV-7. One function computes steps and prompts.
template <typename Params>
class GpuWkvMixer : public GpuMixer {
 public:
  using Kernel = int(const Params& params, const cuda::ChunkRows& rows, cuda::In packed,
                     cuda::State state, cuda::Out out, cuda::Stream stream);

  GpuWkvMixer(const at::Tensor& tables, const Params& params, int64_t state_floats, Kernel* kernel)
      : tables_(tables), params_(params), state_floats_(state_floats), kernel_(kernel) {}

  StateSpec state_spec() const override { return WkvStateSpec(state_floats_); }
  int64_t weight_bytes() const override { return DeviceBytes(tables_); }
  int64_t workspace_floats(const GpuLimits& /*limits*/) const override { return 0; }

  absl::Status Step(const cuda::StepRows& rows, cuda::In packed, cuda::State state,
                    float* /*slot_scratch*/, cuda::Out out, float* /*workspace*/,
                    cuda::Stream stream) const override {
    cuda::ChunkRows single;
    single.rows = single.tokens = rows.rows;
    single.slot = rows.slot;
    single.position = rows.position;
    return KernelStatus(kernel_(params_, single, packed, state, out, stream), "WkvStep");
  }

  absl::Status Prefill(const cuda::ChunkRows& chunks, cuda::In packed, cuda::State state,
                       cuda::Out out, float* /*workspace*/, cuda::Stream stream) const override {
    return KernelStatus(kernel_(params_, chunks, packed, state, out, stream), "WkvPrefill");
  }

  // NetworkConfig allows these kinds only in language models.
  absl::Status Encode(const cuda::Texts& /*texts*/, cuda::In /*packed*/, cuda::Out /*out*/,
                      float* /*workspace*/, cuda::Stream /*stream*/) const override {
    AFT_CHECK(false);
  }

 private:
  at::Tensor tables_;  // on the device
  Params params_;      // points into tables_
  int64_t state_floats_;
  Kernel* kernel_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMixer>> MakeGpuWkvMixer(const MixerConfig& config, int64_t hid,
                                                          const MixerTables& tables,
                                                          at::Device device) {
  const at::Tensor folded = ToDevice(FoldWkvTables(config, hid, tables), device);
  const float* const data = folded.const_data_ptr<float>();
  if (config.kind == MixerKind::kWkv4) {
    const kernels::Wkv4Params params = Wkv4ParamsOf(hid, data);
    return std::make_unique<GpuWkvMixer<kernels::Wkv4Params>>(
        folded, params, kernels::Wkv4StateFloats(params), cuda::Wkv4Forward);
  }
  const kernels::Wkv7Params params = Wkv7ParamsOf(config, hid, data);
  return std::make_unique<GpuWkvMixer<kernels::Wkv7Params>>(
      folded, params, kernels::Wkv7StateFloats(params), cuda::Wkv7Forward);
}

}  // namespace aft
