#include "tests/cuda/conv_harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "model/kernels/aft.h"
#include "model/kernels/conv.h"
#include "tests/cuda/device_matrix.h"
#include "tests/support/mixer_reference.h"

namespace aft::conv_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Number kF32 = Number::kFp32;
constexpr Number kB16 = Number::kBf16;
constexpr Number kF16 = Number::kFp16;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

int64_t Stride(int64_t width, bool padded) { return padded ? (width + 7) / 8 * 8 : width; }

std::vector<int64_t> Offsets(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets = {0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

}  // namespace

const std::vector<Storage> kStorages = {{kF32, kF32, true}, {kF32, kF32, false},
                                        {kF32, kB16, true}, {kF32, kF16, true},
                                        {kB16, kB16, true}, {kB16, kB16, false}};

std::string Storage::Name() const {
  const auto name = [](Number type) {
    return type == kF32 ? "fp32" : type == kB16 ? "bf16" : "fp16";
  };
  return absl::StrCat(name(in), " to ", name(out), padded ? "" : ", rows without gaps");
}

Layer::Layer(TestRandom& random, int64_t channels, int64_t heads, int64_t taps, double spread)
    : hid(channels), spread_(spread) {
  config.kind = MixerKind::kAftConv;
  config.heads = heads;
  config.window = taps;
  Redraw(random);
}

void Layer::Redraw(TestRandom& random) {
  const int64_t taps = config.window * (config.grid ? config.window : 1);
  const std::vector<float> values = random.Normals(config.heads * taps, spread_);
  w.assign(values.begin(), values.end());
}

std::vector<float> Layer::Filter() const {
  const auto heads = Size(config.heads);
  const size_t taps = w.size() / heads;
  std::vector<float> filter(w.size());
  for (size_t head = 0; head < heads; ++head) {
    for (size_t j = 0; j < taps; ++j) {
      filter[j * heads + head] = static_cast<float>(w[head * taps + j]);
    }
  }
  return filter;
}

kernels::cuda::ConvModel Layer::Model(const DeviceArray<float>& device_filter) const {
  kernels::cuda::ConvModel model;
  model.hid = hid;
  model.heads = config.heads;
  model.taps = config.window;
  model.causal = config.causal;
  model.grid = config.grid;
  model.filter = device_filter.get();
  model.wide = std::any_of(w.begin(), w.end(),
                           [](double x) { return std::abs(x) > double{kernels::kNarrowBias}; });
  model.ring = config.ring;
  return model;
}

std::string Layer::Name() const {
  return absl::StrCat(hid, " channels, ", config.heads, " heads, ", config.window, " taps, N(0, ",
                      spread_, "^2)", config.ring == Number::kBf16 ? ", bf16 ring" : "");
}

std::vector<float> Input(TestRandom& random, const Layer& layer, const std::string& keys,
                         int64_t tokens, Number type) {
  const int64_t heads = layer.config.heads;
  std::vector<float> packed = random.Normals(tokens * layer.width());
  const std::vector<float> qkv = RandomQkv(random, keys, tokens, heads);
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(qkv.begin() + (3 * t + 1) * heads, heads,
                packed.begin() + t * layer.width() + layer.hid);
  }
  return Rounded(packed, type);
}

std::vector<double> Reference(const Layer& layer, const std::vector<float>& packed,
                              const std::vector<float>& mask, int64_t grid_width) {
  std::vector<double> stored(packed.begin(), packed.end());
  if (layer.config.ring == Number::kBf16) {
    const std::vector<float> rounded = Rounded(packed, kB16);
    for (size_t i = 0; i < stored.size(); ++i) {
      if (i % Size(layer.width()) >= Size(layer.hid)) stored[i] = double{rounded[i]};
    }
  }
  return ReferenceMixer(layer.config, layer.hid, stored, {{"conv.w", layer.w}},
                        {mask.begin(), mask.end()}, grid_width);
}

void ExpectClose(const std::vector<float>& y, const std::vector<double>& reference, Number type,
                 const std::string& what, double slack) {
  ASSERT_EQ(y.size(), reference.size()) << what;
  const double tolerance = slack * (type == kF32 ? 1e-5 : type == kB16 ? 1e-2 : 2e-3);
  double worst = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_TRUE(std::isfinite(y[i])) << what << ", element " << i;
    const double scale = type == kF32 ? 1 : std::max(1.0, std::abs(reference[i]));
    worst = std::max(worst, std::abs(double{y[i]} - reference[i]) / scale);
  }
  EXPECT_LE(worst, tolerance) << what;
}

std::vector<float> Rows(const std::vector<float>& matrix, int64_t width, int64_t begin,
                        int64_t end) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

Runner::Runner(const Layer& layer, int64_t slots, Storage storage)
    : layer_(layer),
      storage_(storage),
      filter_(layer.Filter()),
      model_(layer.Model(filter_)),
      slot_stride_((model_.layout().Floats() + 15) / 16 * 16),
      states_(Size(slots * slot_stride_)) {}

std::vector<std::vector<float>> Runner::Prefill(const std::vector<Chunk>& chunks) {
  return Run(chunks, false);
}
std::vector<std::vector<float>> Runner::Step(const std::vector<Chunk>& chunks) {
  return Run(chunks, true);
}

std::vector<std::vector<float>> Runner::Run(const std::vector<Chunk>& chunks, bool step) {
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<int64_t> lengths;
  std::vector<float> packed;
  for (const Chunk& chunk : chunks) {
    slots.push_back(chunk.slot);
    positions.push_back(chunk.position);
    packed.insert(packed.end(), chunk.packed.begin(), chunk.packed.end());
    lengths.push_back(static_cast<int64_t>(chunk.packed.size()) / layer_.width());
  }
  const std::vector<int64_t> offsets = Offsets(lengths);
  const auto rows = static_cast<int64_t>(chunks.size());
  const DeviceArray<int32_t> slot(slots);
  const DeviceArray<int64_t> position(positions);
  const DeviceArray<int64_t> offset(offsets);
  const DeviceMatrix in(packed, layer_.width(), storage_.in,
                        Stride(layer_.width(), storage_.padded));
  const DeviceMatrix out(offsets.back(), layer_.hid, storage_.out,
                         Stride(layer_.hid, storage_.padded));
  if (step) {
    kernels::cuda::StepRows batch;
    batch.rows = rows;
    batch.slot = slot.get();
    batch.position = position.get();
    AFT_CHECK(offsets.back() == rows);
    EXPECT_EQ(kernels::cuda::ConvStep(model_, batch, in.in(), {states_.get(), slot_stride_},
                                      out.out(), nullptr),
              0);
  } else {
    kernels::cuda::ChunkRows batch;
    batch.rows = rows;
    batch.slot = slot.get();
    batch.position = position.get();
    batch.offset = offset.get();
    batch.tokens = offsets.back();
    batch.longest = *std::max_element(lengths.begin(), lengths.end());
    const DeviceArray<float> workspace(
        Size(kernels::cuda::ConvPrefillWorkspaceFloats(model_, rows, offsets.back())));
    EXPECT_EQ(kernels::cuda::ConvPrefill(model_, batch, in.in(), {states_.get(), slot_stride_},
                                         out.out(), workspace.get(), nullptr),
              0);
  }
  const std::vector<float> y = out.Get();
  std::vector<std::vector<float>> outputs;
  for (size_t i = 0; i < chunks.size(); ++i) {
    outputs.push_back(Rows(y, layer_.hid, offsets[i], offsets[i + 1]));
  }
  return outputs;
}

std::vector<std::vector<float>> Runner::OnCpu(const std::vector<Chunk>& chunks) {
  std::vector<float> filter = layer_.Filter();
  filter.resize(filter.size() + kernels::kConvPad);
  kernels::ConvParams params;
  params.hid = layer_.hid;
  params.heads = layer_.config.heads;
  params.taps = layer_.config.window;
  params.filter = filter.data();
  params.wide_bias = model_.wide;
  params.ring = model_.ring;
  std::vector<float> scratch(Size(kernels::ConvScratchFloats(params)), kNan);
  std::vector<float> states = states_.Get();
  std::vector<std::vector<float>> outputs;
  for (const Chunk& chunk : chunks) {
    const int64_t tokens = static_cast<int64_t>(chunk.packed.size()) / layer_.width();
    const int64_t offset[] = {0, tokens};
    outputs.emplace_back(Size(tokens * layer_.hid), kNan);
    kernels::ConvForward(params, {1, &chunk.slot, &chunk.position, offset, nullptr},
                         chunk.packed.data(), layer_.width(), nullptr, states.data(), slot_stride_,
                         outputs.back().data(), layer_.hid, scratch.data(), 0,
                         kernels::ConvUnits(params.hid, params.heads, 1));
  }
  states_.Set(states);
  return outputs;
}

std::vector<float> Runner::RunCut(const std::vector<float>& packed,
                                  const std::vector<int64_t>& lengths) {
  const int64_t tokens = static_cast<int64_t>(packed.size()) / layer_.width();
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t length = lengths[std::min(i++, lengths.size() - 1)];
    const int64_t end = std::min(t + std::max<int64_t>(length, 1), tokens);
    const Chunk chunk = {0, t, Rows(packed, layer_.width(), t, end)};
    const std::vector<float> part = Run({chunk}, length == 0)[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<float> Runner::State(int64_t slot) const {
  const std::vector<float> states = states_.Get();
  return Rows(states, slot_stride_, slot, slot + 1);
}

std::vector<float> Encode(const Layer& layer, const std::vector<float>& packed,
                          const std::vector<int64_t>& lengths, const std::vector<float>& mask,
                          int64_t grid_width, Storage storage) {
  const std::vector<int64_t> offsets = Offsets(lengths);
  const DeviceArray<float> filter(layer.Filter());
  const kernels::cuda::ConvModel model = layer.Model(filter);
  const DeviceArray<int64_t> offset(offsets);
  const std::unique_ptr<DeviceArray<float>> device_mask =
      mask.empty() ? nullptr : std::make_unique<DeviceArray<float>>(mask);
  const DeviceMatrix in(packed, layer.width(), storage.in, Stride(layer.width(), storage.padded));
  const DeviceMatrix out(offsets.back(), layer.hid, storage.out, Stride(layer.hid, storage.padded));
  kernels::cuda::Texts texts;
  texts.sequences = static_cast<int64_t>(lengths.size());
  texts.offset = offset.get();
  texts.mask = device_mask == nullptr ? nullptr : device_mask->get();
  texts.grid_width = grid_width;
  texts.tokens = offsets.back();
  texts.longest = *std::max_element(lengths.begin(), lengths.end());
  const DeviceArray<float> workspace(
      Size(kernels::cuda::ConvEncodeWorkspaceFloats(model, texts.sequences, texts.tokens)));
  EXPECT_EQ(kernels::cuda::ConvEncode(model, texts, in.in(), out.out(), workspace.get(), nullptr),
            0);
  return out.Get();
}

}  // namespace aft::conv_test
