// Tests of what the kernels of every mixer promise: cuts into chunks, states, independence of
// neighbours, masks, and numbers that are not finite.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/config/kinds.h"
#include "model/state/slot_layout.h"
#include "tests/cuda/layer.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kTokens = 130;  // the length of a sequence in most tests, a little over two tiles

struct LayerCase {
  std::string name;
  MixerCase shape;
};
std::string NameOf(const testing::TestParamInfo<LayerCase>& info) { return info.param.name; }
void PrintTo(const LayerCase& layer_case, std::ostream* out) { *out << layer_case.name; }

MixerCase WithFullDecode(MixerCase shape) {
  shape.config.full_decode = true;
  return shape;
}

const std::vector<LayerCase> kCausalCases = {
    {"aft_simple", Aft(12, {})},
    {"aft_simple_odd", Aft(33, {})},
    {"aft_window_1", Aft(12, {.window = 1})},
    {"aft_window_2", Aft(12, {.window = 2})},
    {"aft_local", Aft(12, {.window = 33})},
    {"aft_local_odd", Aft(33, {.window = 9})},
    {"aft_long", Aft(12, {.window = 80})},
    {"aft_longer", Aft(12, {.window = 300})},
    {"aft_wide_biases", Aft(12, {.window = 20}, 20)},
    {"aft_bf16_ring", WithBf16Ring(Aft(12, {.window = 33}))},
    {"aft_restart", Aft(12, {.prefix_block = 26})},
    {"aft_window_1_restart", Aft(12, {.window = 1, .prefix_block = 26})},
    {"aft_local_restart", Aft(12, {.window = 20, .prefix_block = 50})},
    {"aft_odd_restart_bf16_ring", WithBf16Ring(Aft(33, {.window = 9, .prefix_block = 20}))},
    {"aft_full", Aft(12, {.window = kTokens, .band_rows = kTokens})},
    {"conv_one_tap", Conv(24, 3, 1)},
    {"conv_two_taps", Conv(24, 24, 2)},
    {"conv_wide_head", Conv(40, 1, 9)},
    {"conv_heads", Conv(24, 3, 9)},
    {"conv_narrow", Conv(24, 24, 9)},
    {"conv_odd", Conv(33, 3, 5)},
    {"conv_bf16_ring", WithBf16Ring(Conv(24, 2, 31))},
    {"conv_narrow_bf16_ring", WithBf16Ring(Conv(24, 24, 31))},
    {"conv_long", Conv(24, 2, 90)},
    {"conv_wide_filter", Conv(24, 24, 5, 30)},
    {"attention_dot", Attention(MixerKind::kDotProduct, 2, 16)},
    {"attention_dot_odd", Attention(MixerKind::kDotProduct, 2, 9)},
    {"attention_cosine", Attention(MixerKind::kCosine, 2, 12)},
    {"attention_additive", Attention(MixerKind::kAdditive, 2, 12)},
    {"attention_location", Attention(MixerKind::kLocation, 1, 12)},
    {"attention_blocks", Blocks(2, 16, 16)},
    {"attention_blocks_odd", Blocks(2, 9, 7)},
    {"attention_blocks_of_32", Blocks(2, 16, 32)},
    {"attention_blocks_without_global_token", Blocks(2, 12, 16, false)},
    {"attention_blocks_full_decode", WithFullDecode(Blocks(2, 12, 16))},
};

// These mixers have a step, but no whole texts.
const std::vector<LayerCase> kRecurrentCases = {
    {"wkv4", Wkv4(24)},        {"wkv4_odd", Wkv4(133)},     {"wkv7", Wkv7(2, 12)},
    {"wkv7_odd", Wkv7(3, 11)}, {"wkv7_of_64", Wkv7(1, 64)},
};

// These mixers are bidirectional, so they have no step.
const std::vector<LayerCase> kBidirectionalCases = {
    {"aft_simple_both_ways", BothWays(Aft(12, {}))},
    {"aft_simple_odd_both_ways", BothWays(Aft(33, {}))},
    {"aft_window_1_both_ways", BothWays(Aft(12, {.window = 1}))},
    {"aft_local_both_ways", BothWays(Aft(12, {.window = 33}))},
    {"aft_local_odd_both_ways", BothWays(Aft(33, {.window = 17}, 20))},
    {"conv_both_ways", BothWays(Conv(24, 3, 9))},
    {"conv_narrow_both_ways", BothWays(Conv(24, 24, 5))},
    {"conv_wide_filter_both_ways", BothWays(Conv(24, 24, 7, 50))},
    {"conv_image", Image(40, 1, 3, 10)},
    {"conv_narrow_image", Image(24, 24, 3, 10)},
    {"attention_dot_both_ways", BothWays(Attention(MixerKind::kDotProduct, 2, 16))},
    {"attention_cosine_both_ways", BothWays(Attention(MixerKind::kCosine, 2, 9))},
    {"attention_additive_both_ways", BothWays(Attention(MixerKind::kAdditive, 2, 9))},
    {"attention_location_both_ways", BothWays(Attention(MixerKind::kLocation, 1, 9))},
    {"attention_blocks_both_ways", BothWays(Blocks(2, 16, 16))},
    {"attention_blocks_without_global_token_both_ways", BothWays(Blocks(2, 9, 16, false))},
};

// Mixers whose keys may have any size. aft_test and conv_test combine such keys with wide biases
// and filters.
const std::vector<LayerCase> kKeyCases = {
    {"aft_simple", Aft(12, {})},
    {"aft_local", Aft(12, {.window = 33})},
    {"aft_local_restart", Aft(12, {.window = 20, .prefix_block = 50})},
    {"aft_odd_restart_bf16_ring", WithBf16Ring(Aft(33, {.window = 9, .prefix_block = 20}))},
};

// Returns the number of neighbouring channels that share keys.
int64_t ChannelsOfAKey(const MixerCase& shape) {
  const MixerConfig& config = shape.config;
  const bool own =
      SpecOf(config.kind).family == KernelFamily::kAft || config.kind == MixerKind::kWkv4;
  return own ? 1 : shape.hid / config.heads;
}

// Returns the range [first, end) of output columns that depend on column `column` of `packed`.
std::pair<int64_t, int64_t> Reached(const MixerCase& shape, const DeviceLayer& layer,
                                    int64_t column) {
  const KernelFamily family = SpecOf(shape.config.kind).family;
  const bool query = column < layer.key_column();
  if (shape.config.kind == MixerKind::kWkv7) {  // its heads are normalised
    const int64_t width = ChannelsOfAKey(shape);
    const int64_t first = column % layer.hid() / width * width;
    return {first, first + width};
  }
  if (column >= layer.value_column()) {
    column -= layer.value_column();
  } else if (ChannelsOfAKey(shape) == 1 && family != KernelFamily::kConv) {
    column %= layer.hid();
  } else if (family == KernelFamily::kAttention || !query) {
    const int64_t width = layer.hid() / shape.config.heads;
    const int64_t columns = layer.key_column() / shape.config.heads;  // in the query of a head
    const int64_t head = family == KernelFamily::kConv ? column - layer.key_column()
                                                       : column % layer.key_column() / columns;
    return {head * width, (head + 1) * width};
  }
  return {column, column + 1};
}

class LayerFixture : public testing::TestWithParam<LayerCase> {
 protected:
  DeviceLayer Make(int32_t slots = 1, Storage storage = {}) {
    return DeviceLayer(random_, GetParam().shape, slots, storage);
  }

  // Puts numbers that are not finite into tokens before and after `border` in turn. They must show
  // in the outputs of their channel or head. All other outputs may change only by rounding, because
  // a tile may be processed in another way. Other channels of AFT and other heads of attention keep
  // their bits. `run` computes y.
  void ExpectStays(const DeviceLayer& layer, int64_t border,
                   const std::function<Matrix(const Matrix&)>& run) {
    const MixerCase& shape = GetParam().shape;
    const KernelFamily family = SpecOf(shape.config.kind).family;
    const int64_t part = ChannelsOfAKey(shape);
    const Tolerance& rounding =
        layer.storage().out == Number::kBf16 ? tolerance::kBf16 : tolerance::kFp32;
    const Matrix packed = layer.Input(random_, kTokens);
    const Matrix good = run(packed);
    bool late = false;
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      std::vector<int64_t> columns = {random_.Below(layer.key_column()),
                                      layer.value_column() + random_.Below(layer.hid())};
      const int64_t keys = layer.value_column() - layer.key_column();
      if (keys > 0) columns.push_back(layer.key_column() + random_.Below(keys));
      for (const int64_t column : columns) {
        const int64_t token =
            late ? border + random_.Below(kTokens - border) : random_.Below(border);
        late = !late;
        SCOPED_TRACE(layer.Name() + ": " + std::to_string(bad) + " in column " +
                     std::to_string(column) + " of token " + std::to_string(token));
        Matrix spoilt = packed;
        spoilt[static_cast<size_t>(token * layer.packed_width() + column)] = bad;
        const Matrix y = run(spoilt);
        const auto [begin, end] = Reached(shape, layer, column);
        for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
          const int64_t t = i / layer.hid();
          const int64_t c = i % layer.hid();
          const auto at = static_cast<size_t>(i);
          const bool sees =
              column < layer.key_column() ? t == token : t >= token || !shape.config.causal;
          if (sees && c >= begin && c < end) continue;
          const bool apart = family != KernelFamily::kConv && c / part != begin / part;
          ASSERT_NEAR(y[at], good[at],
                      apart ? 0 : rounding.each * std::max(1.0, std::abs(double{good[at]})))
              << t << ", " << c;
        }
        if (std::isnan(bad) || column >= layer.value_column()) {
          EXPECT_FALSE(std::isfinite(y[static_cast<size_t>(token * layer.hid() + begin)]));
        }
      }
    }
  }

  TestRandom random_;
};

// ---- Layers with a state
class CudaLayerTest : public LayerFixture {};

TEST_P(CudaLayerTest, AnyCutGivesTheFormulasResultsAndTheCpusState) {
  std::vector<int64_t> some(kTokens);
  for (int64_t& length : some) length = random_.Below(2) == 0 ? 0 : random_.Below(20);
  DeviceLayer layer = Make();
  const Matrix packed = layer.Input(random_, kTokens);
  const std::vector<double> expected = layer.Reference(packed);
  layer.cpu().Run({layer.Chunk(packed, 0, kTokens)});
  const StateSpec spec = layer.gpu().state_spec();
  EXPECT_EQ(spec.floats_per_token, layer.cpu().state_spec().floats_per_token);
  ASSERT_EQ(SlotLayout({spec}).fingerprint(), SlotLayout({layer.cpu().state_spec()}).fingerprint());
  for (const std::vector<int64_t>& cut : {std::vector<int64_t>{kTokens},
                                          {0},
                                          {64},
                                          {63, 2},
                                          {37, 64, 11},
                                          {70, 0},
                                          {1, 63, 1, 0, 40},
                                          some}) {
    SCOPED_TRACE("cut " + testing::PrintToString(cut).substr(0, 40));
    layer.ExpectNear(layer.Run(packed, cut), packed, expected);
    layer.ExpectStateOfCpu(0);
  }
}

TEST_P(CudaLayerTest, EveryStorage) {
  for (const Storage& storage : kStorages) {
    Make(1, storage).ExpectRuns(random_, 110, {30, 0, 0, 70});
  }
}

// The batches have rows of very different lengths, steps, a padding row, and another order than the
// slots. Every row must give the same bits alone. So it does not matter whether a kernel goes
// through a row in order or processes its tiles in parallel.
TEST_P(CudaLayerTest, NeighboursChangeNoBitAndPaddingTouchesNothing) {
  const std::vector<int32_t> slots = {3, 0, 2, 1};  // 4 to 7: rows that run alone; 8: unused
  DeviceLayer layer = Make(9);
  const Matrix untouched = layer.State(8);
  std::vector<Matrix> texts;
  for (size_t i = 0; i < slots.size(); ++i) texts.push_back(layer.Input(random_, kTokens));
  std::vector<int64_t> positions(slots.size(), 0);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{66, 1, 64, 7}, {1, 1, 1, 1}, {3, 70, 1, 80}, {1, 1, 1, 1}}) {
    const bool steps = lengths[0] == 1;
    const size_t padding = static_cast<size_t>((steps ? 1 : 40) * layer.packed_width());
    std::vector<MixerChunk> chunks = {{-1, 17, Matrix(padding, kNan)}};
    for (size_t i = 0; i < slots.size(); ++i) {
      chunks.push_back(layer.Chunk(texts[i], positions[i], positions[i] + lengths[i], slots[i]));
      positions[i] += lengths[i];
    }
    const std::vector<Matrix> y = steps ? layer.Step(chunks) : layer.Prefill(chunks);
    EXPECT_TRUE(SameBits(y[0], Matrix(y[0].size(), 0.0F)));
    for (size_t i = 0; i < slots.size(); ++i) {
      MixerChunk alone = chunks[i + 1];
      alone.slot = static_cast<int32_t>(4 + i);
      const Matrix own = (steps ? layer.Step({alone}) : layer.Prefill({alone}))[0];
      EXPECT_TRUE(SameBits(y[i + 1], own)) << layer.Name() << ", row " << i;
      EXPECT_TRUE(SameBits(layer.State(slots[i]), layer.State(alone.slot))) << layer.Name();
    }
  }
  EXPECT_TRUE(SameBits(layer.State(8), untouched));
}

// No sum depends on the order of threads or blocks. On a GPU the call repeats 20 times. On the CPU
// every run has another order of threads, but there is time for only two runs.
TEST_P(CudaLayerTest, TheSameCallGivesTheSameBits) {
#ifdef AFT_CUDA_ON_CPU
  constexpr int kRepeats = 2;
#else
  constexpr int kRepeats = 20;
#endif
  DeviceLayer layer = Make(3);
  const Matrix texts[] = {layer.Input(random_, kTokens), layer.Input(random_, kTokens),
                          layer.Input(random_, kTokens)};
  layer.Run(Rows(texts[0], layer.packed_width(), 0, 20), {20}, 0);
  layer.Run(Rows(texts[1], layer.packed_width(), 0, 1), {0}, 1);
  const Matrix before[] = {layer.State(0), layer.State(1), layer.State(2)};
  std::vector<Matrix> first;
  for (int i = 0; i < kRepeats; ++i) {
    for (const int32_t slot : {0, 1, 2}) layer.gpu().SetSlotContents(slot, before[slot]);
    std::vector<Matrix> y =
        layer.Prefill({layer.Chunk(texts[2], 0, kTokens - 1, 2), layer.Chunk(texts[1], 1, 2, 1),
                       layer.Chunk(texts[0], 20, 90, 0)});
    for (Matrix& step :
         layer.Step({layer.Chunk(texts[2], kTokens - 1, kTokens, 2), layer.Chunk(texts[1], 2, 3, 1),
                     layer.Chunk(texts[0], 90, 91, 0)})) {
      y.push_back(std::move(step));
    }
    for (const int32_t slot : {0, 1, 2}) y.push_back(layer.State(slot));
    if (i == 0) first = y;
    for (size_t part = 0; part < y.size(); ++part) {
      ASSERT_TRUE(SameBits(y[part], first[part])) << layer.Name() << ", run " << i;
    }
  }
}

TEST_P(CudaLayerTest, NonFiniteNumbersChangeOnlyTheirOwnOutputs) {
  DeviceLayer fp32 = Make();
  DeviceLayer bf16 = Make(1, kBf16Storage);
  ExpectStays(fp32, 115, [&](const Matrix& packed) { return fp32.Run(packed, {120, 0}); });
  ExpectStays(bf16, 64, [&](const Matrix& packed) { return bf16.Run(packed, {kTokens}); });
}

INSTANTIATE_TEST_SUITE_P(Causal, CudaLayerTest, testing::ValuesIn(kCausalCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Recurrent, CudaLayerTest, testing::ValuesIn(kRecurrentCases), NameOf);

// ---- Layers whose keys may have any size
class CudaKeysTest : public LayerFixture {};

TEST_P(CudaKeysTest, KeysOfAnySizeStayExact) {
  for (const Storage& storage : {Storage(), kBf16Storage}) {
    DeviceLayer layer = Make(1, storage);
    for (const std::string& keys : kKeySets) layer.ExpectRuns(random_, 140, {100, 0}, keys);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaKeysTest, testing::ValuesIn(kKeyCases), NameOf);

// ---- Whole texts
class CudaTextTest : public LayerFixture {
 protected:
  // Returns the mask that `kind` names. It is all 0 for an empty kind.
  Matrix Mask(const std::string& kind, int64_t tokens) {
    Matrix mask(static_cast<size_t>(tokens), 0.0F);
    for (int64_t t = 0; t < tokens; ++t) {
      const bool hidden = (kind == "right" && t >= tokens / 2) || (kind == "left" && t < 70) ||
                          (kind == "some" && random_.Below(2) == 0) || kind == "all";
      if (hidden) mask[static_cast<size_t>(t)] = t % 2 == 0 ? -kInfinity : -2e30F;
      if (kind == "added") mask[static_cast<size_t>(t)] = -1.5F * static_cast<float>(t % 5);
    }
    return mask;
  }
};

TEST_P(CudaTextTest, NeighboursChangeNoBit) {
  DeviceLayer layer = Make();
  std::vector<int64_t> lengths = {70, 1, kTokens, 64, 3};
  if (GetParam().shape.config.grid) lengths = {70, 10, 130};
  std::vector<Matrix> texts;
  std::vector<Matrix> masks;
  for (const int64_t tokens : lengths) {
    texts.push_back(layer.Input(random_, tokens));
    masks.push_back(Mask("", tokens));
    masks.back().back() = -kInfinity;
  }
  const std::vector<Matrix> y = layer.Encode(texts);
  const std::vector<Matrix> masked = layer.Encode(texts, masks);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_TRUE(SameBits(y[i], layer.Encode({texts[i]})[0])) << layer.Name();
    EXPECT_TRUE(SameBits(masked[i], layer.Encode({texts[i]}, {masks[i]})[0])) << layer.Name();
  }
  layer.ExpectNear(y[2], texts[2]);
  layer.ExpectNear(masked[2], texts[2], masks[2]);
}

// This tests outputs in bf16. mixer_test.cc tests the same in fp32. The masks hide parts of tiles
// and whole tiles.
TEST_P(CudaTextTest, MaskedTokensLeaveNoTraceWhateverTheyHold) {
  DeviceLayer layer = Make(1, kBf16Storage);
  for (const std::string kind : {"right", "left", "some", "all", "added"}) {
    SCOPED_TRACE(kind);
    Matrix packed = layer.Input(random_, kTokens);
    const Matrix mask = Mask(kind, kTokens);
    const Matrix y = layer.Encode({packed}, {mask})[0];
    layer.ExpectNear(y, packed, mask);
    if (kind == "all") {
      EXPECT_TRUE(SameBits(y, Matrix(y.size(), 0.0F))) << layer.Name();
    }
    for (int64_t t = 0; t < kTokens; ++t) {
      if (mask[static_cast<size_t>(t)] > kMaskedBelow) continue;
      const auto row = packed.begin() + t * layer.packed_width();
      std::fill(row + layer.key_column(), row + layer.value_column() + layer.hid(), kNan);
    }
    EXPECT_TRUE(SameBits(layer.Encode({packed}, {mask})[0], y)) << layer.Name();
  }
}

TEST_P(CudaTextTest, EveryStorage) {
  for (const Storage& storage : kStorages) Make(1, storage).ExpectEncodes(random_, 80);
}

// Only causal mixers run these tests.
class CudaPromptTest : public LayerFixture {};

TEST_P(CudaPromptTest, WholeTextsArePrompts) {
  DeviceLayer layer = Make();
  const Matrix packed = layer.Input(random_, kTokens);
  EXPECT_TRUE(SameBits(layer.Encode({packed})[0], layer.Run(packed, {kTokens}))) << layer.Name();
}

// Only bidirectional mixers run these tests. WholeTextsArePrompts covers causal texts.
class CudaBothWaysTest : public LayerFixture {};

TEST_P(CudaBothWaysTest, NonFiniteNumbersChangeOnlyTheirOwnOutputs) {
  DeviceLayer layer = Make();
  ExpectStays(layer, 64, [&](const Matrix& packed) { return layer.Encode({packed})[0]; });
}

INSTANTIATE_TEST_SUITE_P(Causal, CudaPromptTest, testing::ValuesIn(kCausalCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Causal, CudaTextTest, testing::ValuesIn(kCausalCases), NameOf);
INSTANTIATE_TEST_SUITE_P(BothWays, CudaTextTest, testing::ValuesIn(kBidirectionalCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Cases, CudaBothWaysTest, testing::ValuesIn(kBidirectionalCases), NameOf);

}  // namespace
}  // namespace aft
