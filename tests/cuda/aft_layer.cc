#include "tests/cuda/aft_layer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/config/config.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

kernels::AftBias CpuBias(const AftShape& shape, const Matrix& table) {
  if (shape.window == 0) return {};
  return {table.data(), shape.bias_rows, shape.window, shape.causal};
}

kernels::cuda::AftModel Model(const AftShape& shape, const float* bias, bool wide) {
  kernels::cuda::AftModel model;
  model.hid = shape.hid;
  model.window = shape.window;
  model.prefix_block = shape.prefix_block;
  model.ring = shape.ring;
  model.causal = shape.causal;
  model.bias = shape.window > 0 ? bias : nullptr;
  model.bias_rows = shape.bias_rows;
  model.wide = wide;
  return model;
}

}  // namespace

AftLayer::AftLayer(TestRandom& random, const AftShape& shape, int64_t slots, Storage storage,
                   int64_t ahead)
    : DeviceLayer(shape.hid, 3 * shape.hid, shape.layout().Floats(), slots, storage),
      shape_(shape),
      table_(random.Normals(std::max<int64_t>(shape.bias_rows * shape.columns(), 1), shape.spread)),
      cpu_bias_(CpuBias(shape, table_)),
      bias_(table_),
      model_(Model(shape, bias_.get(), cpu_bias_.wide)),
      ahead_(ahead),
      sums_stride_(kernels::cuda::AftLookaheadFloats(model_, ahead)),
      sums_(Size(slots * sums_stride_)) {}

std::string AftLayer::Name() const {
  return absl::StrCat("AFT, hid ", shape_.hid, ", window ", shape_.window,
                      shape_.ring == Number::kBf16 ? ", bf16 ring" : "", ", H ",
                      shape_.prefix_block, ", bias rows ", shape_.bias_rows, ", spread ",
                      shape_.spread, shape_.causal ? "" : ", bidirectional");
}

DeviceLayer::Spoilt AftLayer::SpoiltBy(int64_t column, int64_t ago, int64_t c) const {
  if (c != column % hid()) return Spoilt::kNoBit;
  const bool query = column < hid();
  const bool reached = query ? ago == 0 : ago >= 0 || !shape_.causal;
  return reached ? Spoilt::kAnything : Spoilt::kRounding;
}

std::vector<int64_t> AftLayer::Columns(TestRandom& random) const {
  const int64_t channel = random.Below(hid());
  return {channel, hid() + channel, 2 * hid() + channel};
}

Matrix AftLayer::Sums(int32_t slot) const {
  return Rows(sums_.Get(), sums_stride_, slot, slot + 1);
}

Matrix AftLayer::RawInput(TestRandom& random, int64_t tokens, const std::string& keys) const {
  return RandomQkv(random, keys, tokens, hid());
}

DeviceLayer::Expected AftLayer::Reference(const Matrix& packed, const Matrix& mask) const {
  std::vector<double> stored(packed.begin(), packed.end());
  if (shape_.ring == Number::kBf16 && shape_.window > 1 && shape_.causal) {
    stored = InBf16Ring(packed, mask);
  }
  MixerConfig config;
  config.kind = shape_.window == 0 ? MixerKind::kAftSimple : MixerKind::kAftLocal;
  config.window = shape_.window;
  config.band_rows = shape_.bias_rows > 1 ? shape_.bias_rows : 0;
  config.length_policy = LengthPolicy::kClamp;
  config.prefix_block = shape_.prefix_block;
  config.causal = shape_.causal;
  std::vector<double> latest_first(table_.begin(), table_.end());
  if (shape_.window > 0) {
    for (auto row = latest_first.begin(); row != latest_first.end(); row += shape_.columns()) {
      std::reverse(row, row + shape_.columns());
    }
  }
  return {
      ReferenceMixer(config, hid(), stored, {{"w.band", latest_first}}, {mask.begin(), mask.end()}),
      shape_.spread > 5 ? tolerance::kFp32Spread : tolerance::kFp32};
}

double AftLayer::StateTolerance(const float* cpu, int64_t i) const {
  const int64_t kind = i / hid() % 3;  // num, den, max
  if (i >= shape_.layout().KRing() || kind == 2) return 0;
  const float den = cpu[kind == 0 ? i + hid() : i];
  return tolerance::kFp32.each * std::max(1.0, static_cast<double>(den));
}

int64_t AftLayer::PrefillFloats(int64_t rows, int64_t tokens) const {
  return kernels::cuda::AftPrefillWorkspaceFloats(model_, rows, tokens);
}
int64_t AftLayer::EncodeFloats(int64_t sequences, int64_t tokens) const {
  return kernels::cuda::AftEncodeWorkspaceFloats(model_, sequences, tokens);
}

int AftLayer::CallStep(const kernels::cuda::StepRows& rows, kernels::cuda::In in,
                       kernels::cuda::State state, kernels::cuda::Out out, float* /*workspace*/) {
  return kernels::cuda::AftStep(model_, rows, in, state, {ahead_, sums_.get(), sums_stride_}, out,
                                nullptr);
}
int AftLayer::CallPrefill(const kernels::cuda::ChunkRows& chunks, kernels::cuda::In in,
                          kernels::cuda::State state, kernels::cuda::Out out, float* workspace) {
  return kernels::cuda::AftPrefill(model_, chunks, in, state, out, workspace, nullptr);
}
int AftLayer::CallEncode(const kernels::cuda::Texts& texts, kernels::cuda::In in,
                         kernels::cuda::Out out, float* workspace) {
  return kernels::cuda::AftEncode(model_, texts, in, out, workspace, nullptr);
}

void AftLayer::CallCpu(const LayerChunk& chunk, int64_t tokens, float* states, int64_t slot_stride,
                       float* y) {
  const kernels::AftParams params = {hid(), &cpu_bias_, shape_.prefix_block, shape_.ring};
  Matrix scratch(Size(kernels::AftScratchFloats(params)));
  const int64_t offset[] = {0, tokens};
  kernels::AftForward(params, {1, &chunk.slot, &chunk.position, offset}, chunk.packed.data(),
                      3 * hid(), states, slot_stride, y, hid(), scratch.data(), 0,
                      kernels::AftUnits(params, 1));
}

}  // namespace aft
