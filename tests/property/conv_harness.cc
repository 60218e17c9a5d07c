#include "tests/property/conv_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ATen/ops/empty.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/property/aft_harness.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class TwoRanges final : public Executor {
 public:
  int threads() const override { return 2; }
  void For(int64_t n, int64_t /*grain*/,
           absl::FunctionRef<void(int64_t, int64_t, int)> fn) const override {
    if (n > n / 3) fn(n / 3, n, 1);
    if (n / 3 > 0) fn(0, n / 3, 0);
  }
};

// Scratch for two threads.
class TestWorkspace {
 public:
  explicit TestWorkspace(int64_t floats)
      : floats_(floats), scratch_(static_cast<size_t>(2 * floats), kNan) {}
  Workspace get() { return {&executor_, scratch_.data(), floats_}; }

 private:
  const TwoRanges executor_;
  int64_t floats_;
  std::vector<float> scratch_;
};

}  // namespace

MixerConfig ConvConfig(int64_t heads, int64_t taps) {
  MixerConfig config;
  config.kind = MixerKind::kAftConv;
  config.heads = heads;
  config.window = taps;
  return config;
}

ConvLayer MakeConvLayer(TestRandom& random, const MixerConfig& config, int64_t hid, double spread) {
  ConvLayer layer = {config, hid, {}, nullptr};
  for (const TensorSpec& spec : ExpectedMixerTables(config, hid)) {
    at::Tensor& table = layer.tables[spec.name] = at::empty(spec.shape, at::kFloat);
    const std::vector<float> values = random.Normals(table.numel(), spread);
    std::copy(values.begin(), values.end(), table.data_ptr<float>());
  }
  layer.mixer = *MakeMixer(config, hid, layer.tables);
  return layer;
}

std::vector<float> RandomConvInput(TestRandom& random, const ConvLayer& layer,
                                   const std::string& keys, int64_t tokens) {
  const int64_t heads = layer.config.heads;
  std::vector<float> packed = random.Normals(tokens * layer.width());
  const std::vector<float> qkv = RandomQkv(random, keys, tokens, heads);
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(qkv.begin() + (3 * t + 1) * heads, heads,
                packed.begin() + t * layer.width() + layer.hid);
  }
  return packed;
}

std::vector<float> RoundedToBf16(const ConvLayer& layer, std::vector<float> packed) {
  for (size_t i = 0; i < packed.size(); ++i) {
    if (static_cast<int64_t>(i) % layer.width() < layer.hid) continue;
    const auto bits = std::bit_cast<uint32_t>(packed[i]);
    const uint32_t up =
        (bits & 0xFFFFU) > 0x8000U || ((bits & 0xFFFFU) == 0x8000U && (bits & 0x10000U) != 0);
    packed[i] = std::bit_cast<float>((bits & 0xFFFF0000U) + (up << 16U));
  }
  return packed;
}

ConvRunner::ConvRunner(const ConvLayer& layer, int64_t slots)
    : layer_(layer), states_(static_cast<size_t>(slots * layer.mixer->state_spec().floats), kNan) {}

std::vector<std::vector<float>> ConvRunner::Run(const std::vector<ConvChunk>& chunks) {
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<int64_t> offsets = {0};
  std::vector<float> packed;
  for (const ConvChunk& chunk : chunks) {
    slots.push_back(chunk.slot);
    positions.push_back(chunk.position);
    packed.insert(packed.end(), chunk.packed.begin(), chunk.packed.end());
    offsets.push_back(static_cast<int64_t>(packed.size()) / layer_.width());
  }
  std::vector<float> y(static_cast<size_t>(offsets.back() * layer_.hid), kNan);
  TestWorkspace workspace(layer_.mixer->scratch_floats());
  layer_.mixer->Forward(
      {packed.data(), layer_.width()},
      {static_cast<int64_t>(chunks.size()), slots.data(), positions.data(), offsets.data()},
      {states_.data(), layer_.mixer->state_spec().floats}, {y.data(), layer_.hid}, workspace.get());
  std::vector<std::vector<float>> outputs;
  for (size_t i = 0; i < chunks.size(); ++i) {
    outputs.push_back(Tokens(y, layer_.hid, offsets[i], offsets[i + 1]));
  }
  return outputs;
}

std::vector<float> ConvRunner::RunCut(const std::vector<float>& packed,
                                      const std::vector<int64_t>& lengths) {
  const int64_t tokens = static_cast<int64_t>(packed.size()) / layer_.width();
  std::vector<float> y;
  size_t i = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t end = std::min(t + lengths[std::min(i++, lengths.size() - 1)], tokens);
    AFT_CHECK(end > t);
    const std::vector<float> part = Run({{0, t, Tokens(packed, layer_.width(), t, end)}})[0];
    y.insert(y.end(), part.begin(), part.end());
    t = end;
  }
  return y;
}

std::vector<float> EncodeConv(const ConvLayer& layer, const std::vector<float>& packed,
                              const std::vector<int64_t>& lengths, const std::vector<float>& mask,
                              int64_t grid_width) {
  std::vector<int64_t> offsets = {0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  AFT_CHECK(static_cast<int64_t>(packed.size()) == offsets.back() * layer.width());
  std::vector<float> y(static_cast<size_t>(offsets.back() * layer.hid), kNan);
  TestWorkspace workspace(
      layer.mixer->encode_scratch_floats(*std::max_element(lengths.begin(), lengths.end())));
  layer.mixer->Encode({packed.data(), layer.width()},
                      {static_cast<int64_t>(lengths.size()), offsets.data(),
                       mask.empty() ? nullptr : mask.data(), grid_width},
                      {y.data(), layer.hid}, workspace.get());
  return y;
}

std::vector<double> ConvReference(const ConvLayer& layer, const std::vector<float>& packed,
                                  const std::vector<float>& mask, int64_t grid_width) {
  ReferenceTables tables;
  for (const auto& [name, table] : layer.tables) {
    const float* data = table.const_data_ptr<float>();
    tables[name].assign(data, data + table.numel());
  }
  return ReferenceMixer(layer.config, layer.hid, {packed.begin(), packed.end()}, tables,
                        {mask.begin(), mask.end()}, grid_width);
}

void ExpectClose(const std::vector<float>& y, const std::vector<double>& reference,
                 double tolerance, const std::string& what) {
  ASSERT_EQ(y.size(), reference.size()) << what;
  double worst = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_TRUE(std::isfinite(y[i])) << what << ", element " << i;
    worst = std::max(worst, std::abs(double{y[i]} - reference[i]));
  }
  EXPECT_LE(worst, tolerance) << what;
}

}  // namespace aft
