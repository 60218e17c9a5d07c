#include <algorithm>
#include <cmath>

#include "model/kernels/aft/aft.h"  // kNarrowBias
#include "model/kernels/cuda/conv/conv.h"
#include "tests/cuda/kernel_family.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

namespace cuda = kernels::cuda;

// conv.w [heads, entries] as kernels want it: [entries, heads].
Matrix TapsFirst(const std::vector<double>& filter, size_t heads) {
  const size_t taps = filter.size() / heads;
  Matrix w(filter.size());
  for (size_t i = 0; i < w.size(); ++i) {
    w[i % taps * heads + i / taps] = static_cast<float>(filter[i]);
  }
  return w;
}

class ConvCalls final : public KernelFamilyCalls {
 public:
  ConvCalls(const LayerShape& shape, const Matrix& filter)
      : cpu_filter_(filter), filter_(filter), grid_width_(shape.grid_width) {
    const MixerConfig& config = shape.config;
    model_.hid = shape.hid;
    model_.heads = config.heads;
    model_.taps = config.window;
    model_.causal = config.causal;
    model_.grid = config.grid;
    model_.ring = config.ring;
    model_.filter = filter_.get();
    model_.wide = std::any_of(filter.begin(), filter.end(),
                              [](float w) { return std::abs(w) > kernels::kNarrowBias; });
    cpu_filter_.resize(filter.size() + kernels::kConvPad);
  }

  int64_t state_floats() const override { return model_.layout().Floats(); }

  int Step(const cuda::StepRows& rows, cuda::In in, cuda::State state, cuda::Out out) override {
    return cuda::ConvStep(model_, rows, in, state, out, nullptr);
  }
  int Prefill(const cuda::ChunkRows& chunks, cuda::In in, cuda::State state,
              cuda::Out out) override {
    const auto workspace =
        Workspace(cuda::ConvPrefillWorkspaceFloats(model_, chunks.rows, chunks.tokens));
    return cuda::ConvPrefill(model_, chunks, in, state, out, workspace.get(), nullptr);
  }
  int Encode(const cuda::Texts& texts, cuda::In in, cuda::Out out) override {
    const auto workspace =
        Workspace(cuda::ConvEncodeWorkspaceFloats(model_, texts.sequences, texts.tokens));
    cuda::Texts images = texts;
    images.grid_width = grid_width_;
    return cuda::ConvEncode(model_, images, in, out, workspace.get(), nullptr);
  }
  void OnCpu(const RaggedBatch& row, const float* packed, float* states, int64_t slot_stride,
             float* y) override {
    kernels::ConvParams params;
    params.hid = model_.hid;
    params.heads = model_.heads;
    params.taps = model_.taps;
    params.filter = cpu_filter_.data();
    params.wide_bias = model_.wide;
    params.ring = model_.ring;
    Matrix scratch(static_cast<size_t>(kernels::ConvScratchFloats(params)));
    kernels::ConvForward(params, row, packed, 2 * params.hid + params.heads, nullptr, states,
                         slot_stride, y, params.hid, scratch.data(), 0,
                         kernels::ConvUnits(params.hid, params.heads, 1));
  }

  double StateTolerance(const float* cpu, int64_t i) const override {
    if (i >= model_.layout().KRing()) return 0;
    return tolerance::kFp32.each * std::max(1.0, std::abs(static_cast<double>(cpu[i])));
  }

 private:
  Matrix cpu_filter_;
  const DeviceArray<float> filter_;
  const int64_t grid_width_;
  cuda::ConvModel model_;
};

}  // namespace

std::unique_ptr<KernelFamilyCalls> MakeConvCalls(const LayerShape& shape,
                                                 const ReferenceTables& tables) {
  return std::make_unique<ConvCalls>(
      shape, TapsFirst(tables.at("conv.w"), static_cast<size_t>(shape.config.heads)));
}

}  // namespace aft
