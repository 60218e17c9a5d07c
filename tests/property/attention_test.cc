// The attention kernels against float64, on every instruction set of this machine.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/property/attention_harness.h"
#include "tests/property/instruction_sets.h"
#include "tests/support/close.h"

namespace aft {
namespace {

constexpr int64_t kNever = INT64_MAX;

class AttentionTest : public EveryInstructionSet {
 protected:
  std::vector<float> RandomPacked(const AttentionLayer& layer, int64_t tokens, double scale = 1) {
    return random_.Normals(tokens * layer.packed_width(), scale);
  }

  void ExpectClose(const std::vector<float>& y, const AttentionLayer& layer,
                   const std::vector<float>& packed, const std::vector<float>& mask = {},
                   int64_t generated = kNever) {
    double largest = 0;
    const std::vector<double> reference =
        AttentionReference(layer, packed, mask, generated, &largest);
    EXPECT_TRUE(Close(y, reference, tolerance::Attention(largest)))
        << layer.Name() << ", " << packed.size() / static_cast<size_t>(layer.packed_width())
        << " tokens, scores up to " << largest;
  }

  TestRandom random_;
};

TEST_P(AttentionTest, EqualsFloat64AtEveryWidthAndNumberOfHeads) {
  constexpr int64_t kTokens = 90;
  for (const AttentionKind kind : kAttentionKinds) {
    for (const int64_t heads : {1, 2, 4}) {
      for (const int64_t width : {1, 8, 33, 64}) {
        AttentionLayer layer(kind, heads, width, kTokens, random_);
        const std::vector<float> packed = RandomPacked(layer, kTokens);
        ExpectClose(AttentionRunner(layer, 1).RunCut(packed, {50, 1, 1, 7}), layer, packed);
        for (const bool causal : {true, false}) {
          layer.params.causal = causal;
          ExpectClose(RunEncode(layer, {packed}, {})[0], layer, packed);
        }
      }
    }
  }
}

TEST_P(AttentionTest, EqualsFloat64AtEveryLength) {
  for (const AttentionKind kind : kAttentionKinds) {
    for (const int64_t tokens : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000}) {
      AttentionLayer layer(kind, 1, 4, tokens, random_);
      const std::vector<float> packed = RandomPacked(layer, tokens);
      ExpectClose(AttentionRunner(layer, 1).RunCut(packed, {tokens}), layer, packed);
      layer.params.causal = false;
      ExpectClose(RunEncode(layer, {packed}, {})[0], layer, packed);
    }
  }
}

TEST_P(AttentionTest, BlockLocalEqualsFloat64AtEveryBlockAndLength) {
  for (const int64_t block : {1, 2, 4, 16, 33, 128}) {
    for (const int64_t tokens : {int64_t{1}, int64_t{2}, block - 1, block, block + 1, 2 * block,
                                 2 * block + 3, 3 * block + 1, 5 * block}) {
      if (tokens == 0) continue;
      for (const bool global : {true, false}) {
        AttentionLayer layer(AttentionKind::kBlockLocal, 2, 3, 0, random_);
        layer.params.block_size = block;
        layer.params.global_token = global;
        const std::vector<float> packed = RandomPacked(layer, tokens);
        ExpectClose(AttentionRunner(layer, 1).RunCut(packed, {tokens}), layer, packed);
        ExpectClose(AttentionRunner(layer, 1).RunCut(packed, {1}), layer, packed);
        layer.params.causal = false;
        ExpectClose(RunEncode(layer, {packed}, {})[0], layer, packed);
      }
    }
  }
}

TEST_P(AttentionTest, FullDecodeLetsGeneratedTokensSeeEverything) {
  for (const int64_t block : {4, 32}) {
    for (const bool global : {true, false}) {
      AttentionLayer layer(AttentionKind::kBlockLocal, 2, 8, 150, random_);
      layer.params.block_size = block;
      layer.params.global_token = global;
      layer.params.full_decode = true;
      const std::vector<float> packed = RandomPacked(layer, 150);
      AttentionRunner runner(layer, 1);
      ExpectClose(runner.RunCut(packed, {50, 50, 1}, 110), layer, packed, {}, 110);
      ExpectClose(runner.RunCut(packed, {150}), layer, packed);
    }
  }
}

// Integers that make every score exact, so that only the softmax is tested.
TEST_P(AttentionTest, ScoresOfTenThousandStayExact) {
  constexpr int64_t kTokens = 200;
  for (const AttentionKind kind :
       {AttentionKind::kDot, AttentionKind::kLocation, AttentionKind::kBlockLocal}) {
    AttentionLayer layer(kind, 1, 16, kTokens, random_);
    layer.params.scale = 0.25F;
    std::vector<float> packed = RandomPacked(layer, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < layer.params.ValueColumn(); ++c) {
        packed[static_cast<size_t>(t * layer.packed_width() + c)] =
            static_cast<float>(random_.Below(101) - 50);
      }
    }
    double largest = 0;
    const std::vector<double> reference = AttentionReference(layer, packed, {}, kNever, &largest);
    ASSERT_GT(largest, kind == AttentionKind::kLocation ? 20 : 2000);
    const std::vector<float> y = AttentionRunner(layer, 1).RunCut(packed, {kTokens});
    EXPECT_TRUE(Close(
        y, reference,
        kind == AttentionKind::kLocation ? tolerance::kScoresRounded : tolerance::Attention(0)));
  }
}

TEST_P(AttentionTest, ExtremeInputsStayFinite) {
  constexpr int64_t kTokens = 100;
  for (const AttentionKind kind : kAttentionKinds) {
    for (const double scale : {1e2, 1e4}) {
      AttentionLayer layer(kind, 2, 8, kTokens, random_);
      std::vector<float> packed = RandomPacked(layer, kTokens, scale);
      const std::vector<float> y = AttentionRunner(layer, 1).RunCut(packed, {40, 1});
      const float top =
          std::abs(*std::max_element(packed.begin(), packed.end(),
                                     [](float a, float b) { return std::abs(a) < std::abs(b); }));
      for (const float value : y)
        ASSERT_LE(std::abs(value), top * (1 + tolerance::kMean)) << layer.Name();
    }
  }
}

TEST_P(AttentionTest, RisingAndFallingScoresEqualFloat64) {
  constexpr int64_t kTokens = 300;
  for (const double slope : {1e4, -1e4, 100.0, -100.0}) {
    AttentionLayer layer(AttentionKind::kDot, 1, 1, kTokens, random_);
    std::vector<float> packed = RandomPacked(layer, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      packed[static_cast<size_t>(3 * t)] = 1;
      packed[static_cast<size_t>(3 * t + 1)] =
          static_cast<float>(slope * (static_cast<double>(t) / kTokens * 2 - 1));
    }
    double largest = 0;
    const std::vector<double> reference = AttentionReference(layer, packed, {}, kNever, &largest);
    const std::vector<float> y = AttentionRunner(layer, 1).RunCut(packed, {kTokens});
    // exp(s - max) is computed for s in float64 and float32 alike: only its own rounding counts.
    EXPECT_TRUE(Close(y, reference, tolerance::kFp32)) << slope;
  }
}

TEST_P(AttentionTest, MaskedTokensLeaveNoTrace) {
  constexpr int64_t kTokens = 150;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const AttentionKind kind : kAttentionKinds) {
    for (const bool causal : {true, false}) {
      for (const bool global : {true, false}) {
        AttentionLayer layer(kind, 2, 9, kTokens, random_);
        layer.params.causal = causal;
        layer.params.global_token = global && layer.params.block_size > 0;
        std::vector<float> packed = RandomPacked(layer, kTokens);
        // Token 0, a whole block, single tokens, padding at the end; and a finite bias.
        std::vector<float> mask(kTokens, 0.0F);
        mask[0] = -kInfinity;
        std::fill(mask.begin() + 32, mask.begin() + 96, std::numeric_limits<float>::lowest());
        for (size_t i = 100; i < 120; i += 3) mask[i] = -1.5F;
        std::fill(mask.begin() + 120, mask.end(), -kInfinity);
        std::vector<float> y = RunEncode(layer, {packed}, {mask})[0];
        ExpectClose(y, layer, packed, mask);

        // Nothing of a masked token's key and value passes, not even NaN.
        for (int64_t t = 0; t < kTokens; ++t) {
          if (mask[static_cast<size_t>(t)] > kMaskedBelow) continue;
          std::fill_n(packed.begin() + t * layer.packed_width() + layer.params.KeyColumn(),
                      layer.params.StrengthColumn() - layer.params.KeyColumn(),
                      std::numeric_limits<float>::quiet_NaN());
        }
        EXPECT_TRUE(SameBits(RunEncode(layer, {packed}, {mask})[0], y)) << layer.Name();
      }
    }
  }
}

TEST_P(AttentionTest, RowsThatSeeNoKeyAreZero) {
  constexpr int64_t kTokens = 70;
  const std::vector<float> mask(kTokens, -std::numeric_limits<float>::infinity());
  for (const AttentionKind kind : kAttentionKinds) {
    for (const bool causal : {true, false}) {
      AttentionLayer layer(kind, 2, 5, kTokens, random_);
      layer.params.causal = causal;
      const std::vector<float> y = RunEncode(layer, {RandomPacked(layer, kTokens)}, {mask})[0];
      EXPECT_TRUE(SameBits(y, std::vector<float>(y.size(), 0.0F))) << layer.Name();
    }
  }
}

TEST_P(AttentionTest, VectorsOfNoLengthHaveCosineZero) {
  constexpr int64_t kTokens = 40;
  AttentionLayer layer(AttentionKind::kCosine, 2, 6, kTokens, random_);
  std::vector<float> packed = RandomPacked(layer, kTokens);
  for (const int64_t t : {0, 7, 39}) {  // query and key
    std::fill_n(packed.begin() + t * layer.packed_width(), layer.params.ValueColumn(),
                t == 7 ? 1e-9F : 0.0F);
  }
  ExpectClose(AttentionRunner(layer, 1).RunCut(packed, {20, 1}), layer, packed);
}

TEST_P(AttentionTest, CosineIgnoresTheLengthOfQueriesAndKeys) {
  constexpr int64_t kTokens = 40;
  const AttentionLayer layer(AttentionKind::kCosine, 1, 8, kTokens, random_);
  std::vector<float> packed = RandomPacked(layer, kTokens);
  const std::vector<float> y = AttentionRunner(layer, 1).RunCut(packed, {kTokens});
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < layer.params.ValueColumn(); ++c) {
      packed[static_cast<size_t>(t * layer.packed_width() + c)] *= t % 2 == 0 ? 1e-4F : 1e30F;
    }
  }
  const std::vector<float> y2 = AttentionRunner(layer, 1).RunCut(packed, {kTokens});
  EXPECT_TRUE(Close(y2, y, tolerance::kFp32));
}

// What mixer_test has not: several groups of 64 keys, blocks that begin within one, and generated
// tokens.
TEST_P(AttentionTest, CuttingASequenceAnywhereChangesNoBit) {
  constexpr int64_t kTokens = 140;
  std::vector<std::pair<AttentionKind, int64_t>> kinds = {{AttentionKind::kBlockLocal, 1},
                                                          {AttentionKind::kBlockLocal, 7},
                                                          {AttentionKind::kBlockLocal, 48}};
  for (const AttentionKind kind : kAttentionKinds) kinds.emplace_back(kind, 32);
  for (const auto& [kind, block] : kinds) {
    for (const bool full_decode : {false, true}) {
      AttentionLayer layer(kind, 1, 21, kTokens, random_);
      if (kind == AttentionKind::kBlockLocal) layer.params.block_size = block;
      layer.params.full_decode = full_decode && kind == AttentionKind::kBlockLocal;
      const int64_t generated = 30 + random_.Below(80);
      const std::vector<float> packed = RandomPacked(layer, kTokens, 2);
      const std::vector<float> whole =
          AttentionRunner(layer, 1).RunCut(packed, {kTokens}, generated);
      EXPECT_TRUE(SameBits(AttentionRunner(layer, 1).RunCut(packed, {1}, generated), whole))
          << layer.Name();
      for (int64_t cut = 1; cut < kTokens; ++cut) {
        ASSERT_TRUE(
            SameBits(AttentionRunner(layer, 1).RunCut(packed, {cut, kTokens}, generated), whole))
            << layer.Name() << " cut at " << cut;
      }
    }
  }
}

AFT_EVERY_INSTRUCTION_SET(AttentionTest);

}  // namespace
}  // namespace aft
