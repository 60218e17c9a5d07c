// Tests the attentions against float64 in cases that the list of mixer_test does not have: every
// width and length, blocks of every size, large scores, generated tokens. Runs on the CPU with
// every instruction set, and on a GPU (tests/gpu_model).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/property/mixer_harness.h"
#include "tests/support/close.h"

namespace aft {
namespace {

constexpr MixerKind kKinds[] = {MixerKind::kDotProduct, MixerKind::kCosine, MixerKind::kAdditive,
                                MixerKind::kLocation, MixerKind::kBlockLocal};

MixerCase Attention(MixerKind kind, int64_t heads, int64_t width, int64_t tokens,
                    bool causal = true) {
  const bool location = kind == MixerKind::kLocation;
  const MixerConfig config = {.kind = kind,
                              .band_rows = location ? tokens : 0,
                              .causal = causal,
                              .heads = location ? 1 : heads,
                              .block_size = kind == MixerKind::kBlockLocal ? 32 : 0,
                              .score_width = kind == MixerKind::kAdditive ? 5 : 0};
  return {.name = {}, .config = config, .hid = config.heads * width, .tokens = tokens};
}
MixerCase BlockLocal(int64_t block, bool global, int64_t tokens, bool causal = true) {
  MixerCase attention = Attention(MixerKind::kBlockLocal, 2, 4, tokens, causal);
  attention.config.block_size = block;
  attention.config.global_token = global;
  return attention;
}

class AttentionTest : public TestedMixersTest {
 protected:
  // Compares the outputs for a text of numbers from N(0, 1) with float64; if the mixer is causal,
  // also in chunks and steps. The scores of such a text are below 16 in narrow heads, and below the
  // width in wide ones.
  void ExpectFloat64(const MixerCase& attention, const std::vector<int64_t>& lengths) {
    const MixerConfig& config = attention.config;
    TestMixer mixer(attention, random_);
    const std::vector<float> packed = mixer.Packed(random_, attention.tokens);
    const std::vector<double> reference = mixer.Reference(packed);
    const auto width = static_cast<double>(attention.hid / config.heads);
    const Tolerance tolerance = Scores(std::max(16.0, width));
    SCOPED_TRACE(absl::StrCat(MixerKindName(config.kind), ", ", config.heads, " heads, ",
                              attention.hid, " channels, blocks of ", config.block_size, ", ",
                              attention.tokens, " tokens"));
    EXPECT_TRUE(Close(mixer.Encode({packed})[0], reference, tolerance));
    if (!config.causal) return;
    EXPECT_TRUE(Close(mixer.RunCut(packed, lengths), reference, tolerance));
  }

  // Returns the tolerance for scores up to this size.
  Tolerance Scores(double size) const {
    if (device_.one_order) return tolerance::Attention(size);
    return {std::max(tolerance::kFp32.each, tolerance::AttentionSplitTf32(size).each)};
  }
};

TEST_P(AttentionTest, EqualsFloat64AtEveryWidthAndNumberOfHeads) {
  for (const MixerKind kind : kKinds) {
    for (const auto& [heads, width] : Few<std::pair<int64_t, int64_t>>(
             {{1, 1}, {2, 8}, {4, 33}, {1, 64}, {2, 80}}, {{1, 1}, {2, 33}, {1, 64}, {1, 80}})) {
      for (const bool causal : {true, false}) {
        ExpectFloat64(Attention(kind, heads, width, 90, causal), {50, 1, 1, 7});
      }
    }
  }
}

TEST_P(AttentionTest, EqualsFloat64AtEveryLength) {
  for (const MixerKind kind : kKinds) {
    for (const int64_t tokens :
         Few<int64_t>({1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000}, {1, 33, 64, 65, 131})) {
      for (const bool causal : {true, false}) {
        ExpectFloat64(Attention(kind, 1, 4, tokens, causal), {tokens});
      }
    }
  }
}

TEST_P(AttentionTest, BlockLocalEqualsFloat64AtEveryBlockAndLength) {
  for (const int64_t block : Few<int64_t>({1, 2, 4, 16, 33, 128}, {1, 16, 33, 64})) {
    for (const int64_t tokens : Few<int64_t>({1, 2, block - 1, block, block + 1, 2 * block,
                                              2 * block + 3, 3 * block + 1, 5 * block},
                                             {2 * block + 3, 4 * block})) {
      if (tokens == 0) continue;
      for (const bool global : {true, false}) {
        for (const bool causal : {true, false}) {
          ExpectFloat64(BlockLocal(block, global, tokens, causal), {tokens / 2 + 1, 1});
        }
      }
    }
  }
}

// A generated token sees all tokens before it, as with dot_product. A token of the prompt sees only
// its blocks.
TEST_P(AttentionTest, FullDecodeLetsGeneratedTokensSeeEverything) {
  constexpr int64_t kTokens = 150;
  constexpr int64_t kPrompt = 110;
  for (const int64_t block : {4, 32}) {
    for (const bool global : {true, false}) {
      MixerCase full_decode = BlockLocal(block, global, kTokens);
      full_decode.config.full_decode = true;
      TestMixer mixer(full_decode, random_);
      TestMixer all(Attention(MixerKind::kDotProduct, 2, 4, kTokens), random_);
      const std::vector<float> packed = mixer.Packed(random_, kTokens);
      std::vector<double> reference = mixer.Reference(packed);
      const std::vector<double> of_all = all.Reference(packed);
      std::copy(of_all.begin() + kPrompt * mixer.hid(), of_all.end(),
                reference.begin() + kPrompt * mixer.hid());
      EXPECT_TRUE(Close(mixer.RunCut(packed, {50, 50, 1}, 0, 0, kPrompt), reference, Scores(4)));
    }
  }
}

// Queries and keys are integers, which makes every score exact, so that only the softmax is tested.
TEST_P(AttentionTest, ScoresOfTenThousandStayExact) {
  constexpr int64_t kTokens = 131;
  const Tolerance exact_scores =
      device_.one_order ? tolerance::Attention(0) : tolerance::kReordered;
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kBlockLocal}) {
    TestMixer mixer(Attention(kind, 1, 16, kTokens), random_);
    std::vector<float> packed = mixer.Packed(random_, kTokens);
    for (size_t i = 0; i < packed.size(); ++i) {
      if (i % 48 < 32) packed[i] = static_cast<float>(random_.Below(101) - 50);
    }
    EXPECT_TRUE(Close(mixer.RunCut(packed, {100, 1}), mixer.Reference(packed), exact_scores));
  }
}

TEST_P(AttentionTest, RisingAndFallingScoresEqualFloat64) {
  constexpr int64_t kTokens = 150;
  for (const double slope : {1e4, -1e4, 100.0, -100.0}) {
    TestMixer mixer(Attention(MixerKind::kDotProduct, 1, 1, kTokens), random_);
    std::vector<float> packed = mixer.Packed(random_, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      packed[static_cast<size_t>(3 * t)] = 1;
      // Multiples of 1/8 are exact in every format that the products use, so only the exponential
      // rounds.
      packed[static_cast<size_t>(3 * t + 1)] = static_cast<float>(
          std::round(8 * slope * (static_cast<double>(t) / kTokens * 2 - 1)) / 8);
    }
    EXPECT_TRUE(Close(mixer.RunCut(packed, {100, 1}), mixer.Reference(packed), tolerance::kFp32))
        << slope;
  }
}

// A key is hidden by a mask of at most -1e30, but not by a low score.
TEST_P(AttentionTest, VeryLowScoresAreNotHidden) {
  constexpr int64_t kTokens = 3;
  TestMixer mixer(Attention(MixerKind::kDotProduct, 1, 1, kTokens), random_);
  std::vector<float> packed = mixer.Packed(random_, kTokens);
  const auto set = [&](float query, float key) {
    for (size_t i = 0; i < packed.size(); i += 3) {
      packed[i] = query;
      packed[i + 1] = key;
    }
  };
  set(1e16F, -1e15F);
  EXPECT_TRUE(Close(mixer.RunCut(packed, {2, 1}), mixer.Reference(packed), tolerance::kFp32));
  EXPECT_TRUE(Close(mixer.Encode({packed})[0], mixer.Reference(packed), tolerance::kFp32));
  set(1, -2e29F);
  const std::vector<float> mask(kTokens, -9e29F);
  EXPECT_TRUE(
      Close(mixer.Encode({packed}, {mask})[0], mixer.Reference(packed, mask), tolerance::kFp32));
}

// Multiplies the queries and keys, but not the values, of token t by factors[t mod size].
std::vector<float> Scaled(const TestMixer& mixer, std::vector<float> packed,
                          const std::vector<float>& factors) {
  for (size_t i = 0; i < packed.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / mixer.width();
    if (static_cast<int64_t>(i) % mixer.width() < 2 * mixer.hid()) {
      packed[i] *= factors[static_cast<size_t>(row) % factors.size()];
    }
  }
  return packed;
}

TEST_P(AttentionTest, CosineIgnoresLengthsAndTakesShortOnesAsZero) {
  TestMixer mixer(Attention(MixerKind::kCosine, 2, 6, 40), random_);
  const std::vector<float> packed = mixer.Packed(random_, 40);
  const std::vector<float> y = mixer.RunCut(packed, {20, 1});
  EXPECT_TRUE(
      Close(mixer.RunCut(Scaled(mixer, packed, {1e-4F, 1e30F}), {20, 1}), y, tolerance::kFp32));
  const std::vector<float> some_short = Scaled(mixer, packed, {1, 0, 1e-9F, 1, 1});
  EXPECT_TRUE(Close(mixer.RunCut(some_short, {20, 1}), mixer.Reference(some_short), Scores(6)));
}

// Infinity divided by the infinite length of its key is NaN.
TEST_P(AttentionTest, CosineOfAnInfiniteKeyIsNan) {
  TestMixer mixer(Attention(MixerKind::kCosine, 1, 6, 3), random_);
  std::vector<float> packed = mixer.Packed(random_, 3);
  packed[static_cast<size_t>(mixer.width() + mixer.key_column())] = HUGE_VALF;
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{3}, {1}, {2, 1}}) {
    const std::vector<float> y = mixer.RunCut(packed, lengths);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i >= 6) << i;
  }
}

// Cases that mixer_test does not have: several groups of 64 keys, blocks that begin within a group,
// and generated tokens.
TEST_P(AttentionTest, CuttingASequenceAnywhereChangesNothing) {
  constexpr int64_t kTokens = 140;
  std::vector<MixerCase> cases;
  for (const MixerKind kind : kKinds) cases.push_back(Attention(kind, 1, 21, kTokens));
  for (const int64_t block : {1, 7, 48}) cases.push_back(BlockLocal(block, true, kTokens));
  cases.push_back(BlockLocal(32, true, kTokens));
  cases.back().config.full_decode = true;
  for (const MixerCase& attention : cases) {
    SCOPED_TRACE(MixerKindName(attention.config.kind));
    TestMixer mixer(attention, random_);
    const int64_t generated = 30 + random_.Below(80);
    const std::vector<float> packed = mixer.Packed(random_, kTokens);
    const std::vector<float> whole = mixer.RunCut(packed, {kTokens}, 0, 0, generated);
    EXPECT_TRUE(Same(mixer.RunCut(packed, {1}, 0, 0, generated), whole));
    for (int64_t cut = 1; cut < kTokens; cut += device_.one_order ? 1 : 37) {
      ASSERT_TRUE(Same(mixer.RunCut(packed, {cut, kTokens}, 0, 0, generated), whole)) << cut;
    }
  }
}

// Rows of one token each are computed together, in tiles of kTileRows rows.
TEST_P(AttentionTest, LocationGivesEachOfManyRowsTheBitsThatItHasAlone) {
  constexpr int32_t kRows = 200;
  TestMixer mixer(Attention(MixerKind::kLocation, 1, 8, 8), random_, kRows);
  std::vector<MixerChunk> prompts;
  std::vector<MixerChunk> steps;
  for (int32_t slot = 0; slot < kRows; ++slot) {
    const int64_t length = 1 + slot % 7;
    prompts.push_back({slot, 0, mixer.Packed(random_, length)});
    steps.push_back({slot, length, mixer.Packed(random_, 1)});
  }
  mixer.Run(prompts);
  const std::vector<std::vector<float>> together = mixer.Run(steps);
  for (const size_t row : std::vector<size_t>{0, 47, 48, 99, 100, 147, 148, 199}) {
    EXPECT_TRUE(Same(mixer.Run({steps[row]})[0], together[row])) << row;
  }
}

AFT_ON_TESTED_MIXERS(AttentionTest);

}  // namespace
}  // namespace aft
