// What every mixer's kernels promise, whatever the formula: of cuts, states, neighbours, masks and
// numbers that are not finite.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/kernels/ragged_batch.h"  // kMaskedBelow
#include "tests/cuda/aft_layer.h"
#include "tests/cuda/attention_layer.h"
#include "tests/cuda/conv_layer.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kTokens = 150;    // of a sequence, in most tests
constexpr int64_t kCapacity = 160;  // of states that grow

struct LayerCase {
  std::string name;
  std::function<std::unique_ptr<DeviceLayer>(TestRandom&, int64_t slots, Storage)> make;
  int64_t unit = 1;  // texts are whole multiples of this: the width of images
};
std::string NameOf(const testing::TestParamInfo<LayerCase>& info) { return info.param.name; }
void PrintTo(const LayerCase& layer_case, std::ostream* out) { *out << layer_case.name; }

LayerCase Aft(const std::string& name, const AftShape& shape) {
  return {"aft_" + name, [shape](TestRandom& random, int64_t slots, Storage storage) {
            return std::make_unique<AftLayer>(random, shape, slots, storage);
          }};
}

LayerCase Conv(const std::string& name, const ConvShape& shape) {
  return {"conv_" + name,
          [shape](TestRandom& random, int64_t slots, Storage storage) {
            return std::make_unique<ConvLayer>(random, shape, slots, storage);
          },
          std::max<int64_t>(shape.grid_width, 1)};
}

LayerCase Attention(const std::string& name, AttentionKind kind, int64_t width, bool causal = true,
                    const std::function<void(kernels::AttentionParams&)>& change = {}) {
  return {"attention_" + name, [=](TestRandom& random, int64_t slots, Storage storage) {
            auto layer = std::make_shared<AttentionLayer>(kind, 2, width, kCapacity, random);
            layer->params.causal = causal;
            if (change) change(layer->params);
            return std::make_unique<CudaAttention>(layer, slots, storage);
          }};
}

// With keys of any size.
const std::vector<LayerCase> kAftCases = {
    Aft("simple", {.hid = 12}),
    Aft("simple_odd", {.hid = 33}),
    Aft("window_1", {.hid = 12, .window = 1}),
    Aft("window_2", {.hid = 12, .window = 2}),
    Aft("local", {.hid = 12, .window = 33}),
    Aft("local_odd", {.hid = 33, .window = 9}),
    Aft("long", {.hid = 12, .window = 80}),
    Aft("longer", {.hid = 12, .window = 300}),
    Aft("wide_biases", {.hid = 12, .window = 20, .spread = 20}),
    Aft("bf16_ring", {.hid = 12, .window = 33, .ring = Number::kBf16}),
    Aft("restart", {.hid = 12, .prefix_block = 26}),
    Aft("window_1_restart", {.hid = 12, .window = 1, .prefix_block = 26}),
    Aft("local_restart", {.hid = 12, .window = 20, .prefix_block = 50}),
    Aft("odd_restart_bf16_ring",
        {.hid = 33, .window = 9, .ring = Number::kBf16, .prefix_block = 20}),
    Aft("full", {.hid = 12, .window = kTokens, .bias_rows = kTokens}),
    Conv("one_tap", {.heads = 3, .taps = 1}),
    Conv("two_taps", {.heads = 24, .taps = 2}),
    Conv("wide_head", {.hid = 40, .heads = 1, .taps = 9}),
    Conv("heads", {.heads = 3, .taps = 9}),
    Conv("narrow", {.heads = 24, .taps = 9}),
    Conv("odd", {.hid = 33, .heads = 3, .taps = 5}),
    Conv("bf16_ring", {.heads = 2, .taps = 31, .ring = Number::kBf16}),
    Conv("narrow_bf16_ring", {.heads = 24, .taps = 31, .ring = Number::kBf16}),
    Conv("long", {.heads = 2, .taps = 90}),
    Conv("wide_filter", {.heads = 24, .taps = 5, .spread = 30}),
};

const std::vector<LayerCase> kAttentionCases = {
    Attention("dot", AttentionKind::kDot, 16),
    Attention("dot_odd", AttentionKind::kDot, 9),
    Attention("cosine", AttentionKind::kCosine, 12),
    Attention("additive", AttentionKind::kAdditive, 12),
    Attention("location", AttentionKind::kLocation, 12),
    Attention("blocks", AttentionKind::kBlockLocal, 16),
    Attention("blocks_odd", AttentionKind::kBlockLocal, 9, true,
              [](auto& params) { params.block_size = 7; }),
    Attention("blocks_of_32", AttentionKind::kBlockLocal, 16, true,
              [](auto& params) { params.block_size = 32; }),
    Attention("blocks_without_global_token", AttentionKind::kBlockLocal, 12, true,
              [](auto& params) { params.global_token = false; }),
    Attention("blocks_full_decode", AttentionKind::kBlockLocal, 12, true,
              [](auto& params) { params.full_decode = true; }),
};

// That have no step.
const std::vector<LayerCase> kBidirectionalCases = {
    Aft("simple_both_ways", {.hid = 12, .causal = false}),
    Aft("simple_odd_both_ways", {.hid = 33, .causal = false}),
    Aft("window_1_both_ways", {.hid = 12, .window = 1, .causal = false}),
    Aft("local_both_ways", {.hid = 12, .window = 33, .causal = false}),
    Aft("local_odd_both_ways", {.hid = 33, .window = 17, .spread = 20, .causal = false}),
    Conv("both_ways", {.heads = 3, .taps = 9, .causal = false}),
    Conv("narrow_both_ways", {.heads = 24, .taps = 5, .causal = false}),
    Conv("wide_filter_both_ways", {.heads = 24, .taps = 7, .spread = 50, .causal = false}),
    Conv("image", {.hid = 40, .heads = 1, .taps = 3, .causal = false, .grid_width = 10}),
    Conv("narrow_image", {.heads = 24, .taps = 3, .causal = false, .grid_width = 10}),
    Attention("dot_both_ways", AttentionKind::kDot, 16, false),
    Attention("cosine_both_ways", AttentionKind::kCosine, 9, false),
    Attention("additive_both_ways", AttentionKind::kAdditive, 9, false),
    Attention("location_both_ways", AttentionKind::kLocation, 9, false),
    Attention("blocks_both_ways", AttentionKind::kBlockLocal, 16, false),
    Attention("blocks_without_global_token_both_ways", AttentionKind::kBlockLocal, 9, false,
              [](auto& params) { params.global_token = false; }),
};

class LayerFixture : public testing::TestWithParam<LayerCase> {
 protected:
  std::unique_ptr<DeviceLayer> Make(int64_t slots = 1, Storage storage = {}) {
    return GetParam().make(random_, slots, storage);
  }

  // Numbers that are not finite, in some token from `first` on, stay in what the family says, and
  // show there. `run` gives y.
  void ExpectStays(DeviceLayer& layer, int64_t first,
                   const std::function<Matrix(const Matrix&)>& run) {
    const Tolerance& rounding =
        layer.storage().in == Number::kBf16 ? tolerance::kBf16 : tolerance::kFp32;
    const Matrix packed = layer.Input(random_, kTokens);
    const Matrix good = run(packed);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      for (const int64_t column : layer.Columns(random_)) {
        const int64_t token = first + random_.Below(kTokens - first);
        SCOPED_TRACE(layer.Name() + ": " + std::to_string(bad) + " in column " +
                     std::to_string(column) + " of token " + std::to_string(token));
        Matrix spoilt = packed;
        spoilt[static_cast<size_t>(token * layer.packed_width() + column)] = bad;
        const Matrix y = run(spoilt);
        for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
          const int64_t t = i / layer.hid();
          const int64_t c = i % layer.hid();
          const auto at = static_cast<size_t>(i);
          const auto what = layer.SpoiltBy(column, t - token, c);
          if (what == DeviceLayer::Spoilt::kNoBit) {
            ASSERT_EQ(y[at], good[at]) << "token " << t << ", channel " << c;
          } else if (what == DeviceLayer::Spoilt::kRounding) {
            ASSERT_NEAR(y[at], good[at], rounding.each) << "token " << t << ", channel " << c;
          }
        }
        if (std::isnan(bad) || column >= layer.ValueColumn()) {
          const int64_t shown = token * layer.hid() + layer.ShownAt(column);
          EXPECT_FALSE(std::isfinite(y[static_cast<size_t>(shown)]));
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
  const auto layer = Make();
  for (const std::vector<int64_t>& cut : {std::vector<int64_t>{kTokens},
                                          {0},
                                          {64},
                                          {63, 2},
                                          {37, 64, 11},
                                          {70, 0},
                                          {1, 63, 1, 0, 40},
                                          some}) {
    SCOPED_TRACE("cut " + testing::PrintToString(cut).substr(0, 40));
    layer->ExpectRuns(random_, kTokens, cut);
  }
}

TEST_P(CudaLayerTest, EveryStorage) {
  for (const Storage& storage : kStorages) {
    Make(1, storage)->ExpectRuns(random_, 110, {30, 0, 0, 70});
  }
}

TEST_P(CudaLayerTest, TheCpuGoesOnFromTheStateAndBack) {
  for (const Storage& storage : {Storage(), kBf16Storage}) {
    const auto layer = Make(1, storage);
    const Matrix packed = layer->Input(random_, kTokens);
    Matrix y;
    bool on_cpu = false;
    for (int64_t t = 0; t < kTokens; on_cpu = !on_cpu) {
      const int64_t length = random_.Below(2) == 0 ? 1 : 1 + random_.Below(50);
      const int64_t end = std::min(t + length, kTokens);
      const std::vector<LayerChunk> chunk = {layer->Chunk(packed, t, end)};
      if (on_cpu) layer->cpu_states() = layer->states();
      const Matrix part = (on_cpu         ? layer->OnCpu(chunk)
                           : end - t == 1 ? layer->Step(chunk)
                                          : layer->Prefill(chunk))[0];
      if (on_cpu) layer->set_states(layer->cpu_states());
      y.insert(y.end(), part.begin(), part.end());
      t = end;
    }
    layer->ExpectNear(y, packed);
  }
}

// Rows of very different length, and steps, in another order than their slots, with a padding row;
// the same bits as each row by itself. So a row that is walked through in a batch of short ones
// gives what its tiles give when they are worked on at once.
TEST_P(CudaLayerTest, NeighboursChangeNoBitAndPaddingTouchesNothing) {
  const std::vector<int32_t> slots = {3, 0, 2, 1};  // alone in slots 4 to 7; 8 is nobody's
  const auto layer = Make(9);
  const Matrix untouched = layer->State(8);
  std::vector<Matrix> texts;
  for (size_t i = 0; i < slots.size(); ++i) texts.push_back(layer->Input(random_, kTokens));
  std::vector<int64_t> positions(slots.size(), 0);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{66, 1, 64, 7}, {1, 1, 1, 1}, {3, 70, 1, 80}, {1, 1, 1, 1}}) {
    const bool steps = lengths[0] == 1;
    const size_t padding = static_cast<size_t>((steps ? 1 : 40) * layer->packed_width());
    std::vector<LayerChunk> chunks = {{-1, 17, Matrix(padding, kNan)}};
    for (size_t i = 0; i < slots.size(); ++i) {
      chunks.push_back(layer->Chunk(texts[i], positions[i], positions[i] + lengths[i], slots[i]));
      positions[i] += lengths[i];
    }
    const std::vector<Matrix> y = steps ? layer->Step(chunks) : layer->Prefill(chunks);
    EXPECT_TRUE(SameBits(y[0], Matrix(y[0].size(), 0.0F)));
    for (size_t i = 0; i < slots.size(); ++i) {
      LayerChunk alone = chunks[i + 1];
      alone.slot = static_cast<int32_t>(4 + i);
      const Matrix own = (steps ? layer->Step({alone}) : layer->Prefill({alone}))[0];
      EXPECT_TRUE(SameBits(y[i + 1], own)) << layer->Name() << ", row " << i;
      EXPECT_TRUE(SameBits(layer->State(slots[i]), layer->State(alone.slot))) << layer->Name();
    }
  }
  EXPECT_TRUE(SameBits(layer->State(8), untouched));
}

TEST_P(CudaLayerTest, AReusedSlotKeepsNoTrace) {
  const auto layer = Make(2);
  const Matrix first = layer->Input(random_, kTokens, "const+1e4");
  for (const std::vector<int64_t>& cut : {std::vector<int64_t>{40, 0}, {0}, {7}}) {
    layer->Run(first, {kTokens - 10, 0}, 0);
    const Matrix second = layer->Input(random_, 50);
    layer->set_states(layer->states());
    EXPECT_TRUE(SameBits(layer->Run(second, cut, 0), layer->Run(second, cut, 1)))
        << layer->Name() << ", cut " << cut[0];
  }
}

// No sum hangs on which thread or block comes first. On a GPU 20 times; without one, under as many
// orders of threads as time allows.
TEST_P(CudaLayerTest, TheSameCallGivesTheSameBits) {
#ifdef AFT_CUDA_ON_CPU
  constexpr int kRepeats = 3;
#else
  constexpr int kRepeats = 20;
#endif
  const auto layer = Make(3);
  const Matrix texts[] = {layer->Input(random_, kTokens), layer->Input(random_, kTokens),
                          layer->Input(random_, kTokens)};
  layer->Run(Rows(texts[0], layer->packed_width(), 0, 20), {20}, 0);
  layer->Run(Rows(texts[1], layer->packed_width(), 0, 1), {0}, 1);
  const Matrix before = layer->states();
  std::vector<Matrix> first;
  for (int i = 0; i < kRepeats; ++i) {
    layer->set_states(before);
    std::vector<Matrix> y =
        layer->Prefill({layer->Chunk(texts[2], 0, kTokens - 1, 2), layer->Chunk(texts[1], 1, 2, 1),
                        layer->Chunk(texts[0], 20, 90, 0)});
    for (Matrix& step :
         layer->Step({layer->Chunk(texts[2], kTokens - 1, kTokens, 2),
                      layer->Chunk(texts[1], 2, 3, 1), layer->Chunk(texts[0], 90, 91, 0)})) {
      y.push_back(std::move(step));
    }
    y.push_back(layer->states());
    if (i == 0) first = y;
    for (size_t part = 0; part < y.size(); ++part) {
      ASSERT_TRUE(SameBits(y[part], first[part])) << layer->Name() << ", run " << i;
    }
  }
}

TEST_P(CudaLayerTest, WhatIsNotFiniteStaysWhereItBelongs) {
  for (const Storage& storage : {Storage(), kBf16Storage}) {
    const auto layer = Make(1, storage);
    ExpectStays(*layer, 0, [&](const Matrix& packed) { return layer->Run(packed, {kTokens}); });
    ExpectStays(*layer, 130, [&](const Matrix& packed) { return layer->Run(packed, {140, 0}); });
  }
}

TEST_P(CudaLayerTest, WholeTextsArePrompts) {
  const auto layer = Make();
  const Matrix packed = layer->Input(random_, kTokens);
  EXPECT_TRUE(SameBits(layer->Encode({packed})[0], layer->Run(packed, {kTokens}))) << layer->Name();
}

INSTANTIATE_TEST_SUITE_P(Aft, CudaLayerTest, testing::ValuesIn(kAftCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Attention, CudaLayerTest, testing::ValuesIn(kAttentionCases), NameOf);

// ---- Layers whose keys may have any size
class CudaKeysTest : public LayerFixture {};

TEST_P(CudaKeysTest, KeysOfAnySizeStayExact) {
  for (const Storage& storage : {Storage(), kBf16Storage}) {
    const auto layer = Make(1, storage);
    for (const std::string& keys : kKeySets) layer->ExpectRuns(random_, 140, {100, 0}, keys);
  }
}

INSTANTIATE_TEST_SUITE_P(Aft, CudaKeysTest, testing::ValuesIn(kAftCases), NameOf);

// ---- Whole texts
class CudaTextTest : public LayerFixture {
 protected:
  // Zeros, or what `kind` says.
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
  const auto layer = Make();
  std::vector<int64_t> lengths = {70, 1, kTokens, 64, 3};
  if (GetParam().unit > 1) lengths = {70, 10, 130};
  std::vector<Matrix> texts;
  std::vector<Matrix> masks;
  for (const int64_t tokens : lengths) {
    texts.push_back(layer->Input(random_, tokens));
    masks.push_back(Mask("", tokens));
    masks.back().back() = -kInfinity;
  }
  const std::vector<Matrix> y = layer->Encode(texts);
  const std::vector<Matrix> masked = layer->Encode(texts, masks);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_TRUE(SameBits(y[i], layer->Encode({texts[i]})[0])) << layer->Name();
    EXPECT_TRUE(SameBits(masked[i], layer->Encode({texts[i]}, {masks[i]})[0])) << layer->Name();
    layer->ExpectNear(y[i], texts[i]);
    layer->ExpectNear(masked[i], texts[i], masks[i]);
  }
}

TEST_P(CudaTextTest, MaskedTokensLeaveNoTraceWhateverTheyHold) {
  for (const Storage& storage : {Storage(), kBf16Storage}) {
    const auto layer = Make(1, storage);
    for (const std::string kind : {"right", "left", "some", "all", "added"}) {
      SCOPED_TRACE(kind);
      Matrix packed = layer->Input(random_, kTokens);
      const Matrix mask = Mask(kind, kTokens);
      const Matrix y = layer->Encode({packed}, {mask})[0];
      layer->ExpectNear(y, packed, mask);
      if (kind == "all") {
        EXPECT_TRUE(SameBits(y, Matrix(y.size(), 0.0F))) << layer->Name();
      }
      const auto [begin, end] = layer->KeysAndValues();
      for (int64_t t = 0; t < kTokens; ++t) {
        if (mask[static_cast<size_t>(t)] > kMaskedBelow) continue;
        const auto row = packed.begin() + t * layer->packed_width();
        std::fill(row + begin, row + end, kNan);
      }
      EXPECT_TRUE(SameBits(layer->Encode({packed}, {mask})[0], y)) << layer->Name();
    }
  }
}

TEST_P(CudaTextTest, EveryStorage) {
  for (const Storage& storage : kStorages) Make(1, storage)->ExpectEncodes(random_, 80);
}

TEST_P(CudaTextTest, WhatIsNotFiniteStaysWhereItBelongs) {
  const auto layer = Make();
  ExpectStays(*layer, 0, [&](const Matrix& packed) { return layer->Encode({packed})[0]; });
}

INSTANTIATE_TEST_SUITE_P(Aft, CudaTextTest, testing::ValuesIn(kAftCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Attention, CudaTextTest, testing::ValuesIn(kAttentionCases), NameOf);
INSTANTIATE_TEST_SUITE_P(BothWays, CudaTextTest, testing::ValuesIn(kBidirectionalCases), NameOf);

}  // namespace
}  // namespace aft
