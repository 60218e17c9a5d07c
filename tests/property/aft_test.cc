// Tests AFT and AFT-conv against float64 in cases that the list of mixer_test does not have:
// extreme keys and biases, every width, shape and length. Runs on the CPU with every instruction
// set, and on a GPU (tests/gpu_model).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/mixers/mixer.h"
#include "model/mixers/pairs.h"
#include "model/mixers/tables.h"
#include "tests/property/mixer_harness.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
// This bound is for long texts and wide filters: where values cancel, the result has too few digits
// for a bound on the root mean square.
constexpr Tolerance kEach = {tolerance::kFp32.each};

MixerCase Local(int64_t hid, int64_t window, double spread = 1, int64_t prefix_block = 0) {
  return {"", {.window = window, .prefix_block = prefix_block}, hid, spread};
}

MixerCase Conv(int64_t hid, int64_t heads, int64_t taps, bool causal, double spread = 1) {
  return {"",
          {.kind = MixerKind::kAftConv, .window = taps, .causal = causal, .heads = heads},
          hid,
          spread};
}

class AftTest : public TestedMixersTest {
 protected:
  // Compares random texts of these lengths with float64. Causal texts run in chunks and steps.
  void ExpectFloat64(const MixerCase& mixer_case, const std::vector<int64_t>& lengths,
                     const std::string& keys, const Tolerance& tolerance,
                     const std::vector<float>& mask = {}) {
    const MixerConfig& config = mixer_case.config;
    SCOPED_TRACE(absl::StrCat(mixer_case.hid, " channels, ", config.heads, " heads, window ",
                              config.window, ", ", config.band_rows, " rows, blocks of ",
                              config.prefix_block, ", biases N(0, ", mixer_case.spread,
                              "^2), keys ", keys));
    TestMixer mixer(mixer_case, random_);
    const std::vector<std::vector<float>> masks(mask.empty() ? 0 : 1, mask);
    for (const int64_t tokens : lengths) {
      if (tokens == 0) continue;
      const std::vector<float> packed = mixer.Packed(random_, tokens, keys);
      const std::vector<int64_t> cut = {tokens * 2 / 3 + 1, 1, 1, device_.one_order ? 7 : tokens};
      const std::vector<float> y = config.causal && mask.empty() ? mixer.RunCut(packed, cut)
                                                                 : mixer.Encode({packed}, masks)[0];
      EXPECT_TRUE(Close(y, mixer.Reference(packed, mask), tolerance)) << tokens << " tokens";
    }
  }
};

TEST_P(AftTest, EqualsFloat64OnEveryKeySetAndBias) {
  for (const std::string& keys : Few(kKeySets, {"n1", "u100", "spike"})) {
    for (const int64_t window : {0, 1, 2, 31, 32, 33, 65, 160}) {
      for (const int64_t block : {int64_t{0}, std::max<int64_t>(window, 1), int64_t{64}}) {
        if (block != 0 && block < window) continue;
        for (const double spread : Few<double>({0, 1, 5, 20}, {1, 20})) {
          if (window == 0 && spread > 1) continue;
          ExpectFloat64(
              Local(5, window, spread, block), {150}, keys,
              device_.one_order || spread <= 5 ? tolerance::kFp32 : tolerance::kFp32Spread);
        }
      }
    }
  }
}

TEST_P(AftTest, StepsEqualTheirPromptOnEveryKeySet) {
  for (const std::string& keys : Few(kKeySets, {"n10"})) {
    for (const int64_t window : Few<int64_t>({15, 16, 33, 40, 64, 70}, {16, 33, 65})) {
      for (const int64_t block : {0, 75}) {
        for (const Number ring : {Number::kFp32, Number::kBf16}) {
          MixerCase local = Local(37, window, 5, block);
          local.config.ring = ring;
          SCOPED_TRACE(absl::StrCat("window ", window, ", blocks of ", block, ", keys ", keys));
          TestMixer mixer(local, random_, 5);
          const std::vector<float> packed = mixer.Packed(random_, 150, keys);
          const std::vector<float> whole = mixer.RunCut(packed, {150});
          EXPECT_TRUE(Same(mixer.RunCut(packed, {1}), whole));
          EXPECT_TRUE(Same(mixer.RunCut(packed, {61, 1}, 4), whole));
          EXPECT_TRUE(Close(whole, mixer.Reference(packed), tolerance::kFp32));
        }
      }
    }
  }
}

// When the infinite value has left the window, infinity times a weight of 0 would be NaN.
TEST_P(AftTest, AnOverflowStaysInfiniteAndInItsChannel) {
  if (!device_.one_order) return;  // a GPU does not round the maximum: nothing overflows
  TestMixer mixer(Local(3, 40), random_);
  for (int64_t token = 20; token < 28; ++token) {
    std::vector<float> packed = mixer.Packed(random_, 80);
    const auto at = static_cast<size_t>(token * mixer.width());
    packed[at + 3 + 1] = 15;  // exp(15), as the maximum is rounded to 0
    packed[at + 6 + 1] = 3e38F;
    const std::vector<float> whole = mixer.RunCut(packed, {80});
    for (size_t i = 0; i < whole.size(); ++i) {
      const bool overflows = i % 3 == 1 && static_cast<int64_t>(i / 3) >= token;
      EXPECT_EQ(std::isinf(whole[i]), overflows) << i;
      EXPECT_FALSE(std::isnan(whole[i])) << i;
    }
    EXPECT_TRUE(SameBits(mixer.RunCut(packed, {1}), whole));
  }
}

// A hidden key has no weight next to a visible one, however low that is.
TEST_P(AftTest, AHiddenKeyIsBelowEveryVisibleKey) {
  std::vector<float> mask(9, 0.0F);
  mask[0] = mask[4] = kMasked;
  for (const bool causal : {true, false}) {
    for (MixerCase mixer_case : {Local(5, 0, 0), Local(5, 3, 0), Conv(8, 2, 3, causal, 0)}) {
      mixer_case.config.causal = causal;
      SCOPED_TRACE(absl::StrCat(causal, " ", mixer_case.config.window));
      TestMixer mixer(mixer_case, random_);
      std::vector<float> packed = mixer.Packed(random_, 9);
      for (int64_t t = 0; t < 9; ++t) {
        float* const row = packed.data() + t * mixer.width();
        std::fill(row + mixer.key_column(), row + mixer.value_column(), -1e33F);
      }
      EXPECT_TRUE(Close(mixer.Encode({packed}, {mask})[0], mixer.Reference(packed, mask), kEach));
    }
  }
}

// The scratch memory of a slot, next to its state, still has data of the previous sequence, at the
// same positions.
TEST_P(AftTest, ASlotKeepsNothingOfTheSequenceBefore) {
  TestMixer mixer(Local(5, 32), random_, 3);
  for (int64_t position = 40; position < 48; position += device_.one_order ? 1 : 5) {
    const std::vector<float> one = mixer.Packed(random_, position + 10);
    const std::vector<float> head = Tokens(one, mixer.width(), 0, position);
    const std::vector<float> tail = Tokens(one, mixer.width(), position, position + 10);
    const std::vector<float> two = mixer.Packed(random_, position);
    mixer.RunCut(head, {position}, 0);
    const std::vector<float> state = mixer.SlotContents(0);
    const std::vector<float> expected = mixer.RunCut(tail, {10}, 0, position);

    mixer.RunCut(two, {1}, 1);
    mixer.RunCut(head, {position}, 1);
    EXPECT_TRUE(Same(mixer.RunCut(tail, {1}, 1, position), expected));

    mixer.RunCut(two, {1}, 2);
    mixer.SetSlotContents(2, state);
    EXPECT_TRUE(Same(mixer.RunCut(tail, {1}, 2, position), expected));
    // A new sequence in the slot, from its first token on, one by one.
    EXPECT_TRUE(Same(mixer.RunCut(one, {1}, 2), mixer.RunCut(one, {position + 10}, 0)));
  }
}

TEST_P(AftTest, EqualsFloat64AtEveryWidth) {
  for (const int64_t hid : {1, 2, 8, 33, 64, 100, 192, 512}) {
    for (const int64_t window : {0, 32}) {
      ExpectFloat64(Local(hid, window), {70}, "n10", tolerance::kFp32);
    }
  }
}

TEST_P(AftTest, BiasesByPositionEndWithTheLastRow) {
  for (const auto& [window, rows] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 25}, {7, 25}, {33, 25}, {20, 100}, {140, 140}}) {
    MixerCase local = Local(8, window);
    local.config.band_rows = rows;
    local.config.length_policy = LengthPolicy::kClamp;
    ExpectFloat64(local, {60, 140}, "n10", tolerance::kFp32);
  }
}

// A table of pairs is folded in slabs of 256 rows.
TEST_P(AftTest, BiasesOfPairsBeyondTheFirstSlab) {
  for (const BiasForm form : {BiasForm::kFull, BiasForm::kFactors}) {
    for (const bool causal : {true, false}) {
      SCOPED_TRACE(absl::StrCat("factors ", form == BiasForm::kFactors, ", causal ", causal));
      MixerCase local = Local(4, 7);
      local.config.causal = causal;
      local.config.band_rows = 300;
      local.config.bias = form;
      if (form == BiasForm::kFactors) local.config.bias_rank = 2;
      ExpectFloat64(local, {300}, "n1", tolerance::kFp32);
    }
  }
}

TEST_P(AftTest, AChannelDoesNotDependOnTheWidth) {
  constexpr int64_t kHid = 100;
  const std::map<std::string, std::vector<float>> band = {{"w.band", random_.Normals(32)}};
  TestMixer wide(Local(kHid, 32), band);
  const std::vector<float> packed = wide.Packed(random_, 50, "n10");
  const std::vector<float> y = wide.RunCut(packed, {50});
  const auto channel_of = [](const std::vector<float>& matrix, size_t channel) {
    std::vector<float> column;
    for (size_t i = channel; i < matrix.size(); i += kHid) column.push_back(matrix[i]);
    return column;
  };
  for (size_t c = 0; c < kHid; c += device_.one_order ? 1 : 9) {
    const std::vector<float> alone =
        TestMixer(Local(1, 32), band).RunCut(channel_of(packed, c), {50});
    ASSERT_TRUE(Same(alone, channel_of(y, c))) << c;
  }
}

TEST_P(AftTest, ExtremeQueriesCloseAndOpenTheGate) {
  TestMixer mixer(Local(2, 2),
                  std::map<std::string, std::vector<float>>{{"w.band", {0.5F, -0.5F}}});
  // All values are 1, so the output is the gate.
  const std::vector<float> y =
      mixer.RunCut({-1e4F, 1e4F, 0, 0, 1, 1, -3e38F, 3e38F, 1e4F, -1e4F, 1, 1}, {1});
  for (const size_t closed : {0U, 2U}) {
    EXPECT_LT(std::abs(y[closed]), 1e-37F);
    EXPECT_FLOAT_EQ(y[closed + 1], 1.0F);
  }
}

TEST_P(AftTest, ConvEqualsFloat64InEveryShape) {
  // One channel per head; heads narrower and wider than a vector and than a tile, with and without
  // remainders; one head for all channels.
  const std::vector<std::pair<int64_t, int64_t>> few = {{8, 8},  {33, 33}, {33, 3},  {33, 1},
                                                        {64, 8}, {64, 2},  {64, 1},  {96, 4},
                                                        {96, 3}, {192, 4}, {192, 24}};
  std::vector<std::pair<int64_t, int64_t>> all = {{100, 2},  {100, 10}, {100, 1},   {512, 64},
                                                  {512, 16}, {512, 8},  {512, 512}, {512, 1}};
  all.insert(all.end(), few.begin(), few.end());
  for (const auto& [hid, heads] : Few(all, few)) {
    for (const int64_t taps : Few<int64_t>({1, 7, 31}, {1, 7})) {
      for (const bool causal : {true, false}) {
        ExpectFloat64(Conv(hid, heads, taps, causal), {75}, "n1", kEach);
      }
    }
  }
}

TEST_P(AftTest, ConvEqualsFloat64AtEveryLength) {
  for (const int64_t heads : {1, 8}) {
    for (const int64_t taps : {1, 7, 31, 33, 131}) {
      std::vector<int64_t> lengths = {1,  2,  taps / 2 + 1, taps - 1, taps, taps + 1,
                                      63, 64, 65,           131,      200};
      if (device_.one_order && heads == 8 && taps < 100) lengths.push_back(1000);
      for (const bool causal : {true, false}) {
        ExpectFloat64(Conv(16, heads, taps, causal), lengths, "n1", kEach);
      }
    }
  }
}

TEST_P(AftTest, ExtremeKeysAndFiltersStayExact) {
  for (const std::string& keys : kKeySets) {
    for (const double spread : Few<double>({0.1, 1, 5, 20, 200}, {1, 20, 200})) {
      for (const int64_t heads : {2, 12}) {
        for (const bool causal : {true, false}) {
          ExpectFloat64(Conv(12, heads, 9, causal, spread), {75}, keys,
                        spread > 100 ? tolerance::kFp32Large : kEach);
        }
      }
    }
  }
}

TEST_P(AftTest, ImagesOfEverySizeAndFilter) {
  for (const auto& [height, width] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 20}, {20, 1}, {9, 13}, {16, 5}, {3, 70}}) {
    const int64_t tokens = height * width;
    std::vector<float> mask(static_cast<size_t>(tokens), 0.0F);
    for (size_t t = 1; t < mask.size(); ++t) {
      const int64_t kind = random_.Below(8);
      mask[t] = kind < 3 ? static_cast<float>(random_.Normal()) : kind == 7 ? kMasked : 0.0F;
    }
    const auto expect = [&](MixerCase conv, const std::string& keys, const Tolerance& tolerance) {
      conv.config.grid = true;
      conv.grid_width = width;
      ExpectFloat64(conv, {tokens}, keys, tolerance, mask);
    };
    for (const int64_t taps : {1, 3, 11}) {
      for (const auto& [hid, heads] : Few<std::pair<int64_t, int64_t>>(
               {{8, 8}, {33, 3}, {100, 1}, {72, 72}}, {{24, 24}, {33, 3}, {24, 1}})) {
        expect(Conv(hid, heads, taps, false), "n10", kEach);
      }
    }
    for (const char* keys : {"n10", "u100", "spike"}) {
      expect(Conv(12, 4, 5, false, 100), keys, device_.one_order ? kEach : tolerance::kFp32Large);
    }
  }
}

TEST_P(AftTest, TheReparameterisedFilterIsFolded) {
  for (const bool unbiased : {true, false}) {
    for (const bool grid : {true, false}) {
      MixerCase conv = Conv(8, 4, 7, !grid);
      conv.config.grid = grid;
      conv.config.reparameterized = true;
      conv.config.unbiased_std = unbiased;
      conv.config.std_eps = 0.05F;
      ExpectFloat64(conv, {40}, "n1", kEach);
    }
  }
}

TEST(ConvFilterTest, AFilterWithoutSpreadIsRefused) {
  TestRandom random;
  MixerCase conv = Conv(8, 2, 7, true);
  conv.config.reparameterized = true;
  MixerTables tables = TestMixer(conv, random).tables();
  tables["conv.w"].fill_(0.5);
  EXPECT_EQ(MakeMixer(conv.config, 8, tables).status().code(), absl::StatusCode::kDataLoss);
  conv.config.std_eps = 0.1F;
  EXPECT_TRUE(MakeMixer(conv.config, 8, tables).ok());
}

TEST(ConvFilterTest, AFilterThatOverflowsIsRefused) {
  TestRandom random;
  MixerCase conv = Conv(8, 2, 7, true);
  conv.config.reparameterized = true;
  MixerTables tables = TestMixer(conv, random).tables();
  tables["conv.gamma"].fill_(3e38);
  tables["conv.beta"].fill_(3e38);
  EXPECT_EQ(MakeMixer(conv.config, 8, tables).status().code(), absl::StatusCode::kDataLoss);
}

// A text with a mask of pairs needs room for all of its keys, however little the kernel for plain
// texts needs.
TEST(MixerScratchTest, HoldsTheKeysOfALongTextWithAMaskOfPairs) {
  constexpr int64_t kTokens = 1 << 20;
  TestRandom random;
  for (const MixerCase& one : CausalCases()) {
    const MixerTables tables = TestMixer(one, random).tables();
    const auto mixer = MakeMixer(one.config, one.hid, tables, {.max_seq_len = kMixerTokens});
    ASSERT_TRUE(mixer.ok()) << mixer.status();
    EXPECT_GE((*mixer)->encode_scratch_floats(kTokens), PairScratchFloats(kTokens)) << one.name;
  }
}

// Only the products of pairs within the window count.
TEST(AftBandTest, FactorsWhoseProductOverflowsAreRefused) {
  TestRandom random;
  MixerCase local = Local(8, 3);
  local.config.band_rows = 9;
  local.config.bias = BiasForm::kFactors;
  local.config.bias_rank = 2;
  MixerTables tables = TestMixer(local, random).tables();
  tables["w.u"][8].fill_(1e20);
  tables["w.v"][5].fill_(1e20);
  EXPECT_TRUE(MakeMixer(local.config, 8, tables).ok());
  tables["w.v"][6].fill_(1e20);
  EXPECT_EQ(MakeMixer(local.config, 8, tables).status(),
            absl::DataLossError("w.u, w.v: a bias is not finite"));
}

// The sums have one order in double, so a mixer has the same biases on every processor.
TEST(AftBandTest, ProductsOfFactorsHaveOneOrder) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kRank = 37;
  TestRandom random;
  for (const int64_t window : {int64_t{17}, kRows}) {
    for (const bool causal : {true, false}) {
      MixerCase local = Local(8, window);
      local.config.causal = causal;
      local.config.band_rows = kRows;
      local.config.bias = BiasForm::kFactors;
      local.config.bias_rank = kRank;
      const MixerTables tables = TestMixer(local, random).tables();
      const float* const u = tables.at("w.u").const_data_ptr<float>();
      const float* const v = tables.at("w.v").const_data_ptr<float>();
      std::vector<float> expected;
      for (int64_t t = 0; t < kRows; ++t) {
        const int64_t last = causal ? t : t + window - 1;
        for (int64_t key = t - window + 1; key <= last; ++key) {
          double sum = 0;
          for (int64_t k = 0; key >= 0 && key < kRows && k < kRank; ++k) {
            sum += double{u[t * kRank + k]} * v[key * kRank + k];
          }
          expected.push_back(static_cast<float>(sum));
        }
      }
      const auto band = CheckedAftBand(local.config, tables);
      ASSERT_TRUE(band.ok()) << band.status();
      const float* const w = band->w.const_data_ptr<float>();
      EXPECT_TRUE(SameBits({w, w + band->w.numel()}, expected)) << window << " " << causal;
    }
  }
}

AFT_ON_TESTED_MIXERS(AftTest);

}  // namespace
}  // namespace aft
