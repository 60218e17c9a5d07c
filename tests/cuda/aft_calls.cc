#include <algorithm>

#include "model/kernels/cuda/aft/aft.h"
#include "tests/cuda/kernel_family.h"
#include "tests/support/same_bits.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

namespace cuda = kernels::cuda;

// w as the kernels want it, from the earliest key to the latest; w.band has the latest first.
Matrix EarliestFirst(const MixerConfig& config, const ReferenceTables& tables) {
  if (config.window == 0) return {};
  const std::vector<double>& band = tables.at("w.band");
  Matrix w(band.begin(), band.end());
  const int64_t rows = std::max<int64_t>(config.band_rows, 1);
  const auto columns = static_cast<int64_t>(w.size()) / rows;
  for (int64_t row = 0; row < rows; ++row) {
    std::reverse(w.begin() + row * columns, w.begin() + (row + 1) * columns);
  }
  return w;
}

kernels::AftBias CpuBias(const MixerConfig& config, const Matrix& w) {
  if (config.window == 0) return {};
  return {w.data(), std::max<int64_t>(config.band_rows, 1), config.window, config.causal};
}

cuda::AftModel Model(const LayerShape& shape, const float* w, const kernels::AftBias& bias) {
  cuda::AftModel model;
  model.hid = shape.hid;
  model.window = shape.config.window;
  model.prefix_block = shape.config.prefix_block;
  model.ring = shape.config.ring;
  model.causal = shape.config.causal;
  model.bias = model.window > 0 ? w : nullptr;
  model.bias_rows = bias.rows;
  model.wide = bias.wide;
  return model;
}

class AftCalls final : public KernelFamilyCalls {
 public:
  AftCalls(const LayerShape& shape, const Matrix& w, int64_t slots)
      : w_(w),
        cpu_bias_(CpuBias(shape.config, w)),
        model_(Model(shape, w_.get(), cpu_bias_)),
        ahead_(shape.ahead),
        slot_sums_(cuda::AftLookaheadFloats(model_, ahead_)),
        sums_(static_cast<size_t>(slots * slot_sums_)) {}

  int64_t state_floats() const override { return model_.layout().Floats(); }

  int Step(const cuda::StepRows& rows, cuda::In in, cuda::State state, cuda::Out out) override {
    return cuda::AftStep(model_, rows, in, state, {ahead_, sums_.get(), slot_sums_}, out, nullptr);
  }
  int Prefill(const cuda::ChunkRows& chunks, cuda::In in, cuda::State state,
              cuda::Out out) override {
    const auto workspace =
        Workspace(cuda::AftPrefillWorkspaceFloats(model_, chunks.rows, chunks.tokens));
    return cuda::AftPrefill(model_, chunks, in, state, out, workspace.get(), nullptr);
  }
  int Encode(const cuda::Texts& texts, cuda::In in, cuda::Out out) override {
    const auto workspace =
        Workspace(cuda::AftEncodeWorkspaceFloats(model_, texts.sequences, texts.tokens));
    return cuda::AftEncode(model_, texts, in, out, workspace.get(), nullptr);
  }
  void OnCpu(const RaggedBatch& row, const float* packed, float* states, int64_t slot_stride,
             float* y) override {
    const kernels::AftParams params = {model_.hid, &cpu_bias_, model_.prefix_block, model_.ring};
    Matrix scratch(static_cast<size_t>(kernels::AftScratchFloats(params)));
    kernels::AftForward(params, row, packed, 3 * model_.hid, {states, slot_stride}, y, model_.hid,
                        scratch.data(), 0, kernels::AftUnits(params, 1));
  }

  double StateTolerance(const float* cpu, int64_t i) const override {
    const int64_t kind = i / model_.hid % 3;  // num, den, max
    if (i >= model_.layout().KRing() || kind == 2) return 0;
    const float den = cpu[kind == 0 ? i + model_.hid : i];
    return tolerance::kFp32.each * std::max(1.0, static_cast<double>(den));
  }
  Matrix Sums(int32_t slot) const override {
    return Tokens(sums_.Get(), slot_sums_, slot, slot + 1);
  }

 private:
  const DeviceArray<float> w_;
  const kernels::AftBias cpu_bias_;
  const cuda::AftModel model_;
  const int64_t ahead_;
  const int64_t slot_sums_;
  const DeviceArray<float> sums_;
};

}  // namespace

std::unique_ptr<KernelFamilyCalls> MakeAftCalls(const LayerShape& shape,
                                                const ReferenceTables& tables, int64_t slots) {
  return std::make_unique<AftCalls>(shape, EarliestFirst(shape.config, tables), slots);
}

}  // namespace aft
