#include "tests/cuda/conv_layer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/config/config.h"
#include "model/kernels/aft.h"
#include "model/kernels/conv.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

kernels::cuda::ConvModel Model(const ConvShape& shape) {
  kernels::cuda::ConvModel model;
  model.hid = shape.hid;
  model.heads = shape.heads;
  model.taps = shape.taps;
  model.causal = shape.causal;
  model.grid = shape.grid_width > 0;
  model.ring = shape.ring;
  return model;
}

}  // namespace

ConvLayer::ConvLayer(TestRandom& random, const ConvShape& shape, int64_t slots, Storage storage)
    : DeviceLayer(shape.hid, 2 * shape.hid + shape.heads, Model(shape).layout().Floats(), slots,
                  storage),
      shape_(shape),
      device_filter_(Size(shape.heads * shape.entries())),
      model_(Model(shape)) {
  model_.filter = device_filter_.get();
  const Matrix drawn = random.Normals(shape.heads * shape.entries(), shape.spread);
  set_filter({drawn.begin(), drawn.end()});
}

void ConvLayer::set_filter(const std::vector<double>& filter) {
  filter_ = filter;
  device_filter_.Set(TapsFirst());
  model_.wide = std::any_of(filter.begin(), filter.end(), [](double x) {
    return std::abs(x) > static_cast<double>(kernels::kNarrowBias);
  });
}

Matrix ConvLayer::TapsFirst() const {
  const auto heads = Size(shape_.heads);
  const auto taps = Size(shape_.entries());
  Matrix filter(filter_.size());
  for (size_t i = 0; i < filter.size(); ++i) {
    filter[i % taps * heads + i / taps] = static_cast<float>(filter_[i]);
  }
  return filter;
}

std::string ConvLayer::Name() const {
  return absl::StrCat("AFT-conv, ", hid(), " channels, ", shape_.heads, " heads, ", shape_.taps,
                      " taps, spread ", shape_.spread,
                      shape_.ring == Number::kBf16 ? ", bf16 ring" : "",
                      shape_.causal ? "" : ", bidirectional",
                      model_.grid ? absl::StrCat(", images of width ", shape_.grid_width) : "");
}

// A tile is worked on together: where one channel has to be done again, all are.
DeviceLayer::Spoilt ConvLayer::SpoiltBy(int64_t column, int64_t ago, int64_t c) const {
  const int64_t width = hid() / shape_.heads;
  const bool key = column >= hid() && column < ValueColumn();
  const bool same = key ? c / width == column - hid() : c == ShownAt(column);
  const bool reached = column < hid() ? ago == 0 : ago >= 0 || !shape_.causal;
  return same && reached ? Spoilt::kAnything : Spoilt::kRounding;
}

int64_t ConvLayer::ShownAt(int64_t column) const {
  if (column < hid()) return column;
  return column < ValueColumn() ? (column - hid()) * (hid() / shape_.heads)
                                : column - ValueColumn();
}

std::vector<int64_t> ConvLayer::Columns(TestRandom& random) const {
  return {random.Below(hid()), hid() + random.Below(shape_.heads),
          ValueColumn() + random.Below(hid())};
}

Matrix ConvLayer::RawInput(TestRandom& random, int64_t tokens, const std::string& keys) const {
  const int64_t heads = shape_.heads;
  Matrix packed = random.Normals(tokens * packed_width());
  const Matrix qkv = RandomQkv(random, keys, tokens, heads);
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(qkv.begin() + (3 * t + 1) * heads, heads,
                packed.begin() + t * packed_width() + hid());
  }
  return packed;
}

DeviceLayer::Expected ConvLayer::Reference(const Matrix& packed, const Matrix& mask) const {
  std::vector<double> stored(packed.begin(), packed.end());
  if (shape_.ring == Number::kBf16 && shape_.causal) stored = InBf16Ring(packed, mask);
  MixerConfig config;
  config.kind = MixerKind::kAftConv;
  config.heads = shape_.heads;
  config.window = shape_.taps;
  config.causal = shape_.causal;
  config.grid = model_.grid;
  // Entries of some hundreds have larger ulps.
  return {ReferenceMixer(config, hid(), stored, {{"conv.w", filter_}}, {mask.begin(), mask.end()},
                         shape_.grid_width),
          shape_.spread > 100 ? tolerance::kFp32Large : Tolerance{tolerance::kFp32.each}};
}

double ConvLayer::StateTolerance(const float* cpu, int64_t i) const {
  if (i >= model_.layout().KRing()) return 0;
  return tolerance::kFp32.each * std::max(1.0, std::abs(static_cast<double>(cpu[i])));
}

int64_t ConvLayer::PrefillFloats(int64_t rows, int64_t tokens) const {
  return kernels::cuda::ConvPrefillWorkspaceFloats(model_, rows, tokens);
}
int64_t ConvLayer::EncodeFloats(int64_t sequences, int64_t tokens) const {
  return kernels::cuda::ConvEncodeWorkspaceFloats(model_, sequences, tokens);
}

int ConvLayer::CallStep(const kernels::cuda::StepRows& rows, kernels::cuda::In in,
                        kernels::cuda::State state, kernels::cuda::Out out, float* /*workspace*/) {
  return kernels::cuda::ConvStep(model_, rows, in, state, out, nullptr);
}
int ConvLayer::CallPrefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In in,
                           kernels::cuda::State state, kernels::cuda::Out out, float* workspace) {
  return kernels::cuda::ConvPrefill(model_, chunks, in, state, out, workspace, nullptr);
}
int ConvLayer::CallEncode(const kernels::cuda::Texts& texts, kernels::cuda::In in,
                          kernels::cuda::Out out, float* workspace) {
  kernels::cuda::Texts images = texts;
  images.grid_width = shape_.grid_width;
  return kernels::cuda::ConvEncode(model_, images, in, out, workspace, nullptr);
}

void ConvLayer::CallCpu(const LayerChunk& chunk, int64_t tokens, float* states, int64_t slot_stride,
                        float* y) {
  Matrix filter = TapsFirst();
  filter.resize(filter.size() + kernels::kConvPad);
  kernels::ConvParams params;
  params.hid = hid();
  params.heads = shape_.heads;
  params.taps = shape_.taps;
  params.filter = filter.data();
  params.wide_bias = model_.wide;
  params.ring = model_.ring;
  Matrix scratch(Size(kernels::ConvScratchFloats(params)));
  const int64_t offset[] = {0, tokens};
  kernels::ConvForward(params, {1, &chunk.slot, &chunk.position, offset, nullptr},
                       chunk.packed.data(), packed_width(), nullptr, states, slot_stride, y, hid(),
                       scratch.data(), 0, kernels::ConvUnits(params.hid, params.heads, 1));
}

}  // namespace aft
