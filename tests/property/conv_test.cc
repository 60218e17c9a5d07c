// AFT-conv against its definition in float64, and its bit-exact promises, on every instruction set.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/property/aft_harness.h"
#include "tests/property/conv_harness.h"

namespace aft {
namespace {

constexpr double kTolerance = 1e-5;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct Shape {
  int64_t hid;
  int64_t heads;
};
// One channel a head, heads narrower and wider than a vector and than a tile, with and without
// remainders, one head for all.
const std::vector<Shape> kShapes = {{8, 8},    {33, 33},  {33, 3},  {33, 1},    {64, 8},
                                    {64, 2},   {64, 1},   {100, 2}, {100, 10},  {100, 1},
                                    {512, 64}, {512, 16}, {512, 8}, {512, 512}, {512, 1}};

std::string Name(const ConvLayer& layer) {
  return absl::StrCat(layer.hid, " channels, ", layer.config.heads, " heads, ", layer.config.window,
                      " taps");
}

class ConvTest : public EveryInstructionSet {
 protected:
  ConvLayer Make(const MixerConfig& config, int64_t hid, double spread = 1.0) {
    return MakeConvLayer(random_, config, hid, spread);
  }
  std::vector<float> Input(const ConvLayer& layer, int64_t tokens, const std::string& keys = "n1") {
    return RandomConvInput(random_, layer, keys, tokens);
  }
  // Lengths that sum to `tokens`, short and long.
  std::vector<int64_t> RandomCut(int64_t tokens) {
    std::vector<int64_t> lengths;
    while (tokens > 0) {
      lengths.push_back(std::min(tokens, 1 + random_.Below(random_.Below(2) == 0 ? 3 : 30)));
      tokens -= lengths.back();
    }
    return lengths;
  }
  // One layer per ring type, and one with wide biases.
  std::vector<ConvLayer> Layers(const Shape& shape, int64_t taps) {
    std::vector<ConvLayer> layers;
    MixerConfig config = ConvConfig(shape.heads, taps);
    layers.push_back(Make(config, shape.hid));
    layers.push_back(Make(config, shape.hid, 30.0));
    config.ring = RingType::kBf16;
    layers.push_back(Make(config, shape.hid));
    return layers;
  }

  TestRandom random_;
};

MixerConfig Bidirectional(MixerConfig config) {
  config.causal = false;
  return config;
}

TEST_P(ConvTest, EqualsItsDefinitionInEveryShape) {
  for (const Shape& shape : kShapes) {
    for (const int64_t taps : {1, 7, 31}) {
      const ConvLayer layer = Make(ConvConfig(shape.heads, taps), shape.hid);
      const std::vector<float> packed = Input(layer, 40);
      ExpectClose(ConvRunner(layer, 1).RunCut(packed, {40}), ConvReference(layer, packed),
                  kTolerance, Name(layer));
    }
  }
}

TEST_P(ConvTest, EqualsItsDefinitionAtEveryLength) {
  for (const int64_t taps : {1, 2, 7, 31, 33}) {
    const ConvLayer layer = Make(ConvConfig(2, taps), 8);
    for (const int64_t tokens :
         {int64_t{1}, int64_t{2}, taps - 1, taps, taps + 1, int64_t{200}, int64_t{1000}}) {
      if (tokens == 0) continue;
      const std::vector<float> packed = Input(layer, tokens);
      ExpectClose(ConvRunner(layer, 1).RunCut(packed, {tokens}), ConvReference(layer, packed),
                  kTolerance, absl::StrCat(Name(layer), ", ", tokens, " tokens"));
    }
  }
}

TEST_P(ConvTest, ExtremeKeysAndFiltersStayExact) {
  for (const std::string& keys : kKeySets) {
    for (const double spread : {0.1, 1.0, 5.0, 20.0, 200.0}) {
      // fp32 holds an exponent of several hundred to 3e-5 only.
      const double tolerance = spread > 100 ? 1e-4 : kTolerance;
      for (const int64_t heads : {2, 12}) {
        const ConvLayer causal = Make(ConvConfig(heads, 9), 12, spread);
        const std::vector<float> packed = Input(causal, 60, keys);
        const std::string what = absl::StrCat(keys, ", filter N(0, ", spread, "^2)");
        ExpectClose(ConvRunner(causal, 1).RunCut(packed, {60}), ConvReference(causal, packed),
                    tolerance, what);
        const ConvLayer both = Make(Bidirectional(ConvConfig(heads, 9)), 12, spread);
        ExpectClose(EncodeConv(both, packed, {60}), ConvReference(both, packed), tolerance,
                    what + ", bidirectional");
      }
    }
  }
}

TEST_P(ConvTest, PrefillEqualsDecodeBitForBit) {
  for (const Shape& shape : {Shape{33, 33}, {33, 3}, {64, 8}, {100, 1}, {200, 200}, {160, 2}}) {
    for (const int64_t taps : {1, 2, 9, 31}) {
      for (const ConvLayer& layer : Layers(shape, taps)) {
        const std::vector<float> packed = Input(layer, 80, "n10");
        const std::vector<float> whole = ConvRunner(layer, 1).RunCut(packed, {80});
        EXPECT_TRUE(SameBits(ConvRunner(layer, 1).RunCut(packed, {1}), whole)) << Name(layer);
        EXPECT_TRUE(SameBits(ConvRunner(layer, 1).RunCut(packed, RandomCut(80)), whole))
            << Name(layer);
      }
    }
  }
}

TEST_P(ConvTest, BatchNeighboursChangeNoBit) {
  constexpr int64_t kTokens = 60;
  for (const ConvLayer& layer : Layers({100, 10}, 9)) {
    std::vector<std::vector<float>> inputs;
    std::vector<std::vector<float>> outputs(4);
    std::vector<int64_t> positions(4, 0);
    for (size_t i = 0; i < 4; ++i) inputs.push_back(Input(layer, kTokens, "n10"));
    ConvRunner together(layer, 4);
    while (*std::min_element(positions.begin(), positions.end()) < kTokens) {
      std::vector<ConvChunk> chunks = {{-1, 5, Input(layer, 2)}};
      std::vector<size_t> sequences;
      for (size_t i = 0; i < 4; ++i) {
        if (positions[i] == kTokens || random_.Below(3) == 0) continue;
        const int64_t end =
            std::min(kTokens, positions[i] + (random_.Below(2) == 0 ? 1 : random_.Below(20) + 1));
        chunks.push_back({static_cast<int32_t>(3 - i), positions[i],
                          Tokens(inputs[i], layer.width(), positions[i], end)});
        sequences.push_back(i);
        positions[i] = end;
      }
      const std::vector<std::vector<float>> parts = together.Run(chunks);
      EXPECT_TRUE(SameBits(parts[0], std::vector<float>(parts[0].size(), 0.0F)));
      for (size_t j = 0; j < sequences.size(); ++j) {
        std::vector<float>& output = outputs[sequences[j]];
        output.insert(output.end(), parts[j + 1].begin(), parts[j + 1].end());
      }
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(SameBits(outputs[i], ConvRunner(layer, 1).RunCut(inputs[i], {kTokens})));
    }
  }
}

TEST_P(ConvTest, ABf16RingIsAnFp32RingOfRoundedKeysAndValues) {
  for (const Shape& shape : {Shape{33, 33}, {100, 10}, {100, 1}}) {
    MixerConfig config = ConvConfig(shape.heads, 8);
    const ConvLayer fp32 = Make(config, shape.hid);
    config.ring = RingType::kBf16;
    const ConvLayer bf16 = {config, shape.hid, fp32.tables,
                            *MakeMixer(config, shape.hid, fp32.tables)};
    const std::vector<float> packed = Input(fp32, 70, "n10");
    EXPECT_TRUE(SameBits(ConvRunner(bf16, 1).RunCut(packed, {33, 1}),
                         ConvRunner(fp32, 1).RunCut(RoundedToBf16(fp32, packed), {70})));
    EXPECT_FALSE(SameBits(ConvRunner(bf16, 1).RunCut(packed, {70}),
                          ConvRunner(fp32, 1).RunCut(packed, {70})));
    EXPECT_LT(bf16.mixer->state_spec().floats, fp32.mixer->state_spec().floats);
  }
}

TEST_P(ConvTest, ALaterTokenChangesNoEarlierBit) {
  for (const ConvLayer& layer : Layers({64, 8}, 9)) {
    const std::vector<float> packed = Input(layer, 50, "n10");
    std::vector<float> changed = packed;
    for (int64_t i = 30 * layer.width(); i < 31 * layer.width(); ++i) {
      changed[static_cast<size_t>(i)] += 50;
    }
    const std::vector<float> y = ConvRunner(layer, 1).RunCut(packed, {50});
    const std::vector<float> y2 = ConvRunner(layer, 1).RunCut(changed, {50});
    EXPECT_TRUE(SameBits(Tokens(y, layer.hid, 0, 30), Tokens(y2, layer.hid, 0, 30)));
    EXPECT_FALSE(SameBits(y, y2));
  }
}

TEST_P(ConvTest, SlotsKeepNoTraceAndPaddingTouchesNone) {
  for (const ConvLayer& layer : Layers({33, 3}, 9)) {
    const std::vector<float> packed = Input(layer, 40);
    const std::vector<float> fresh = ConvRunner(layer, 1).RunCut(packed, {7, 1});
    ConvRunner runner(layer, 3);
    const std::vector<float> before = runner.states();
    runner.Run({{-1, 3, Input(layer, 5)}});
    EXPECT_TRUE(SameBits(runner.states(), before));
    runner.Run({{1, 0, Input(layer, 60)}});
    const int64_t slot = layer.mixer->state_spec().floats;
    for (const int64_t other : {0, 2}) {
      EXPECT_TRUE(SameBits(Tokens(runner.states(), slot, other, other + 1),
                           Tokens(before, slot, other, other + 1)));
    }
    ConvRunner used(layer, 1);
    used.RunCut(Input(layer, 60, "const+1e4"), {60});
    EXPECT_TRUE(SameBits(used.RunCut(packed, {7, 1}), fresh));
  }
}

TEST_P(ConvTest, ANanStaysInItsHead) {
  constexpr int64_t kTokens = 30;
  for (const bool causal : {true, false}) {
    MixerConfig config = ConvConfig(5, 7);
    config.causal = causal;
    const ConvLayer layer = Make(config, 20);
    const auto run = [&](const std::vector<float>& packed) {
      return causal ? ConvRunner(layer, 1).RunCut(packed, {kTokens})
                    : EncodeConv(layer, packed, {kTokens});
    };
    const std::vector<float> clean = Input(layer, kTokens);
    std::vector<float> dirty = clean;
    dirty[static_cast<size_t>(12 * layer.width() + layer.hid + 2)] = kNan;  // a key of head 2
    const std::vector<float> y = run(clean);
    const std::vector<float> y2 = run(dirty);
    for (size_t i = 0; i < y.size(); ++i) {
      const auto token = static_cast<int64_t>(i) / layer.hid;
      const auto head = static_cast<int64_t>(i) % layer.hid / 4;
      if (head == 2 && (!causal || token >= 12)) {
        EXPECT_TRUE(std::isnan(y2[i]));
      } else {
        EXPECT_EQ(y2[i], y[i]);
      }
    }
  }
}

TEST_P(ConvTest, OneHeadPerChannelAndOneFilterIsLocal) {
  constexpr int64_t kHid = 37;
  for (const int64_t taps : {1, 7, 31}) {
    for (const bool causal : {true, false}) {
      MixerConfig config = ConvConfig(kHid, taps);
      config.causal = causal;
      MixerConfig local_config;
      local_config.kind = MixerKind::kAftLocal;
      local_config.window = causal ? taps : (taps + 1) / 2;
      local_config.causal = causal;
      const ConvLayer local = MakeConvLayer(random_, local_config, kHid);
      // Local: column = t - t' and on; a bidirectional filter begins with the earliest key.
      const at::Tensor band = local.tables.at("w.band");
      const at::Tensor row = causal ? band : band.flip(1);
      ConvLayer conv = {config, kHid, {{"conv.w", row.expand({kHid, taps}).contiguous()}}, nullptr};
      conv.mixer = *MakeMixer(config, kHid, conv.tables);
      const std::vector<float> packed = Input(conv, 100, "n10");
      ExpectClose(
          causal ? ConvRunner(conv, 1).RunCut(packed, {100}) : EncodeConv(conv, packed, {100}),
          ConvReference(local, packed), kTolerance, Name(conv));
      const std::vector<float> y =
          causal ? ConvRunner(local, 1).RunCut(packed, {100}) : EncodeConv(local, packed, {100});
      ExpectClose(y, ConvReference(conv, packed), kTolerance, Name(conv));
    }
  }
}

TEST_P(ConvTest, EncodesBothWaysInEveryShape) {
  for (const Shape& shape : kShapes) {
    for (const int64_t taps : {1, 7, 31}) {
      const ConvLayer layer = Make(Bidirectional(ConvConfig(shape.heads, taps)), shape.hid);
      const std::vector<float> packed = Input(layer, 41);
      ExpectClose(EncodeConv(layer, packed, {41}), ConvReference(layer, packed), kTolerance,
                  Name(layer));
    }
  }
}

TEST_P(ConvTest, EncodesBothWaysAtEveryLength) {
  for (const int64_t taps : {1, 7, 33}) {
    const ConvLayer layer = Make(Bidirectional(ConvConfig(2, taps)), 8);
    for (const int64_t tokens :
         {int64_t{1}, int64_t{2}, taps / 2 + 1, taps, taps + 1, int64_t{200}, int64_t{1000}}) {
      const std::vector<float> packed = Input(layer, tokens);
      ExpectClose(EncodeConv(layer, packed, {tokens}), ConvReference(layer, packed), kTolerance,
                  absl::StrCat(Name(layer), ", ", tokens, " tokens"));
    }
  }
}

TEST_P(ConvTest, EncodesImages) {
  for (const Shape& shape : {Shape{8, 8}, {33, 3}, {100, 1}, {72, 72}}) {
    for (const int64_t taps : {1, 3, 11}) {
      MixerConfig config = Bidirectional(ConvConfig(shape.heads, taps));
      config.grid = true;
      const ConvLayer layer = Make(config, shape.hid);
      for (const auto& [height, width] :
           {std::pair<int64_t, int64_t>{1, 1}, {1, 20}, {20, 1}, {9, 13}, {16, 5}}) {
        const std::vector<float> packed = Input(layer, height * width, "n10");
        std::vector<float> mask(static_cast<size_t>(height * width), 0.0F);
        mask[static_cast<size_t>(random_.Below(height * width))] = height * width > 1 ? kMasked : 0;
        ExpectClose(EncodeConv(layer, packed, {height * width}, mask, width),
                    ConvReference(layer, packed, mask, width), kTolerance,
                    absl::StrCat(Name(layer), ", ", height, " x ", width));
      }
    }
  }
}

TEST_P(ConvTest, WideFiltersOnImagesStayExact) {
  MixerConfig config = Bidirectional(ConvConfig(4, 5));
  config.grid = true;
  for (const char* keys : {"n10", "u100", "spike"}) {
    const ConvLayer layer = Make(config, 12, 100.0);
    const std::vector<float> packed = Input(layer, 9 * 8, keys);
    ExpectClose(EncodeConv(layer, packed, {72}, {}, 8), ConvReference(layer, packed, {}, 8),
                kTolerance, keys);
  }
}

TEST_P(ConvTest, MaskedKeysContributeNothingWhateverTheyHold) {
  constexpr int64_t kTokens = 50;
  for (const bool causal : {true, false}) {
    for (const double spread : {1.0, 50.0}) {
      MixerConfig config = ConvConfig(3, 7);
      config.causal = causal;
      const ConvLayer layer = Make(config, 33, spread);
      std::vector<float> packed = Input(layer, kTokens, "n10");
      std::vector<float> mask = random_.Normals(kTokens);
      for (const int64_t t : {0, 1, 2, 20, 21, 49}) mask[static_cast<size_t>(t)] = kMasked;
      mask[30] = -2e30F;
      const std::vector<double> reference = ConvReference(layer, packed, mask);
      for (int64_t t = 0; t < kTokens; ++t) {
        if (mask[static_cast<size_t>(t)] > -1e30F) continue;
        for (int64_t i = layer.hid; i < layer.width(); ++i) {
          packed[static_cast<size_t>(t * layer.width() + i)] = kNan;
        }
      }
      const std::vector<float> y = EncodeConv(layer, packed, {kTokens}, mask);
      ExpectClose(y, reference, kTolerance, causal ? "causal" : "bidirectional");
      // Causal: the first three tokens see no key at all.
      for (int64_t i = 0; i < 3 * layer.hid && causal; ++i) {
        EXPECT_EQ(y[static_cast<size_t>(i)], 0.0F);
      }
      const std::vector<float> none(kTokens, kMasked);
      for (const float zero : EncodeConv(layer, packed, {kTokens}, none)) EXPECT_EQ(zero, 0.0F);
    }
  }
}

TEST_P(ConvTest, CausalEncodeIsForward) {
  for (const ConvLayer& layer : Layers({100, 10}, 9)) {
    const std::vector<float> packed = Input(layer, 90, "n10");
    std::vector<float> y;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 50}, {50, 51}, {51, 90}}) {
      const std::vector<float> part =
          ConvRunner(layer, 1).RunCut(Tokens(packed, layer.width(), begin, end), {100});
      y.insert(y.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(SameBits(EncodeConv(layer, packed, {50, 1, 39}), y));
  }
}

TEST_P(ConvTest, EncodeNeighboursChangeNoBit) {
  const ConvLayer layer = Make(Bidirectional(ConvConfig(10, 9)), 100);
  const std::vector<float> packed = Input(layer, 90, "n10");
  const std::vector<float> y = EncodeConv(layer, packed, {50, 1, 39});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 50}, {50, 51}, {51, 90}}) {
    EXPECT_TRUE(
        SameBits(EncodeConv(layer, Tokens(packed, layer.width(), begin, end), {end - begin}),
                 Tokens(y, layer.hid, begin, end)));
  }
}

TEST_P(ConvTest, TheReparameterisedFilterIsFolded) {
  for (const bool unbiased : {true, false}) {
    for (const bool grid : {true, false}) {
      MixerConfig config = ConvConfig(4, 7);
      config.causal = !grid;
      config.grid = grid;
      config.reparameterized = true;
      config.unbiased_std = unbiased;
      config.std_eps = 0.05F;
      const ConvLayer layer = Make(config, 8);
      const std::vector<float> packed = Input(layer, 40);
      const std::vector<float> y =
          grid ? EncodeConv(layer, packed, {40}, {}, 5) : ConvRunner(layer, 1).RunCut(packed, {40});
      ExpectClose(y, ConvReference(layer, packed, {}, grid ? 5 : 0), kTolerance, "folded");
    }
  }
}

TEST_P(ConvTest, AHundredThousandStepsDoNotDrift) {
  constexpr int64_t kTokens = 100000;
  constexpr int64_t kTaps = 5;
  const ConvLayer layer = Make(ConvConfig(1, kTaps), 1);
  const float* filter = layer.tables.at("conv.w").const_data_ptr<float>();
  const std::vector<float> packed = Input(layer, kTokens);
  const std::vector<float> y = ConvRunner(layer, 1).RunCut(packed, {kTokens - 100, 1});
  double past_num = 0;
  double past_den = 0;
  double worst = 0;
  const auto at = [&](int64_t t, int64_t i) {
    return double{packed[static_cast<size_t>(3 * t + i)]};
  };
  for (int64_t t = 0; t < kTokens; ++t) {
    if (t >= kTaps) {
      past_num += std::exp(at(t - kTaps, 1)) * at(t - kTaps, 2);
      past_den += std::exp(at(t - kTaps, 1));
    }
    double num = past_num;
    double den = past_den;
    for (int64_t j = 0; j < std::min(kTaps, t + 1); ++j) {
      const double e = std::exp(at(t - j, 1) + double{filter[j]});
      num += e * at(t - j, 2);
      den += e;
    }
    const double expected = num / den / (1 + std::exp(-at(t, 0)));
    worst = std::max(worst, std::abs(expected - double{y[static_cast<size_t>(t)]}));
  }
  EXPECT_LE(worst, 5e-5);
}

TEST_P(ConvTest, StateSectionsAreContiguousAndComplete) {
  for (const ConvLayer& layer : Layers({33, 3}, 8)) {
    const StateSpec spec = layer.mixer->state_spec();
    int64_t end = 0;
    for (const StateSection& section : spec.sections) {
      EXPECT_EQ(section.offset, end) << section.name;
      end += section.floats;
    }
    EXPECT_EQ(end, spec.floats);
    const bool bf16 = layer.config.ring == RingType::kBf16;
    EXPECT_EQ(spec.floats, 33 + 2 * 3 + (bf16 ? 11 + 116 : 7 * 3 + 7 * 33));
  }
}

TEST_P(ConvTest, RefusesAFilterWithoutSpread) {
  MixerConfig config = ConvConfig(2, 7);
  config.reparameterized = true;
  ConvLayer layer = Make(config, 8);
  layer.tables["conv.w"].fill_(0.5);
  EXPECT_EQ(MakeMixer(config, 8, layer.tables).status().code(), absl::StatusCode::kDataLoss);
  config.std_eps = 0.1F;
  EXPECT_TRUE(MakeMixer(config, 8, layer.tables).ok());
}

INSTANTIATE_TEST_SUITE_P(Simd, ConvTest, testing::ValuesIn(InstructionSets()), InstructionSetName);

}  // namespace
}  // namespace aft
