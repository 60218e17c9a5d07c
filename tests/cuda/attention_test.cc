// The attention kernels of model/kernels/cuda against float64.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda/attention_device.h"
#include "tests/property/attention_harness.h"

namespace aft {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The whole matrix of shapes instead of a part.
bool Full() { return std::getenv("AFT_CUDA_FULL") != nullptr; }

std::vector<int64_t> Few(const std::vector<int64_t>& all, const std::vector<int64_t>& few) {
  return Full() ? all : few;
}

class CudaAttentionTest : public testing::Test {
 protected:
  std::vector<float> RandomPacked(const AttentionLayer& layer, int64_t tokens,
                                  Number type = Number::kFp32, double scale = 1) {
    return Rounded(random_.Normals(tokens * layer.packed_width(), scale), type);
  }

  // Rounding of a score of size S moves a weight by a factor of about 1 + S * 6e-8; three products
  // in TF32 for one in fp32 cost another 2e-7.
  void ExpectClose(const std::vector<float>& y, const AttentionLayer& layer,
                   const std::vector<float>& packed, const std::vector<float>& mask = {},
                   int64_t generated = kNever, double tolerance = 5e-6) {
    double largest = 0;
    const std::vector<double> reference =
        AttentionReference(layer, packed, mask, generated, &largest);
    ASSERT_EQ(y.size(), reference.size());
    double worst = 0;
    double norm = 1;
    for (size_t i = 0; i < y.size(); ++i) {
      const double difference = std::abs(y[i] - reference[i]);
      worst = difference <= worst ? worst : difference;  // NaN stays
      norm = std::max(norm, std::abs(reference[i]));
    }
    EXPECT_TRUE(worst <= norm * (tolerance + 6e-7 * largest))
        << layer.Name() << ", " << packed.size() / static_cast<size_t>(layer.packed_width())
        << " tokens: error " << worst << ", scores up to " << largest;
  }

  TestRandom random_;
};

TEST_F(CudaAttentionTest, EqualsFloat64AtEveryWidthAndNumberOfHeads) {
  const int64_t tokens = 70;
  for (const AttentionKind kind : kAttentionKinds) {
    for (const int64_t width : Few({1, 8, 16, 33, 64, 80, 96, 128}, {1, 33, 64, 80})) {
      for (const int64_t heads : Few({1, 2, 3, 4}, {1 + random_.Below(2)})) {
        AttentionLayer layer(kind, heads, width, tokens, random_);
        const std::vector<float> packed = RandomPacked(layer, tokens);
        ExpectClose(DeviceAttention(layer, 1).RunCut(packed, {50, 1, 1, 7}), layer, packed);
        for (const bool causal : {true, false}) {
          layer.params.causal = causal;
          ExpectClose(DeviceAttention(layer, 1).Encode({packed}, {})[0], layer, packed);
        }
      }
    }
  }
}

// A step's lanes hold four groups of columns each; 516 columns are two blocks'.
TEST_F(CudaAttentionTest, StepsOfWideValuesEqualFloat64) {
  constexpr int64_t kTokens = 40;
  for (const AttentionKind kind : {AttentionKind::kDot, AttentionKind::kAdditive}) {
    for (const int64_t width : {132, 516}) {
      const AttentionLayer layer(kind, 1, width, kTokens, random_);
      const std::vector<float> packed = RandomPacked(layer, kTokens);
      ExpectClose(DeviceAttention(layer, 1).RunCut(packed, {33, 1}), layer, packed);
    }
  }
}

TEST_F(CudaAttentionTest, EqualsFloat64AtEveryLength) {
  for (const AttentionKind kind : kAttentionKinds) {
    for (const int64_t tokens :
         Few({1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 131, 200}, {1, 33, 64, 131})) {
      AttentionLayer layer(kind, 1, 8, tokens, random_);
      const std::vector<float> packed = RandomPacked(layer, tokens);
      ExpectClose(DeviceAttention(layer, 1).RunCut(packed, {tokens}), layer, packed);
      ExpectClose(DeviceAttention(layer, 1).RunCut(packed, {(tokens + 1) / 2}), layer, packed);
      layer.params.causal = false;
      ExpectClose(DeviceAttention(layer, 1).Encode({packed}, {})[0], layer, packed);
    }
  }
}

TEST_F(CudaAttentionTest, BlockLocalEqualsFloat64AtEveryBlockAndLength) {
  for (const int64_t block : Few({1, 2, 4, 16, 32, 33, 64, 128}, {1, 16, 33, 64})) {
    for (const int64_t tokens : Few({1, 2, block - 1, block, block + 1, 2 * block, 2 * block + 3,
                                     3 * block + 1, 5 * block},
                                    {2 * block + 3, 4 * block})) {
      if (tokens == 0) continue;
      for (const bool global : {true, false}) {
        AttentionLayer layer(AttentionKind::kBlockLocal, 2, 4, 0, random_);
        layer.params.block_size = block;
        layer.params.global_token = global;
        const std::vector<float> packed = RandomPacked(layer, tokens);
        ExpectClose(DeviceAttention(layer, 1).RunCut(packed, {tokens}), layer, packed);
        ExpectClose(DeviceAttention(layer, 1).RunCut(packed, {3, 1}), layer, packed);
        layer.params.causal = false;
        ExpectClose(DeviceAttention(layer, 1).Encode({packed}, {})[0], layer, packed);
      }
    }
  }
}

TEST_F(CudaAttentionTest, LongContextsAreSplitOverBlocks) {
  for (const AttentionKind kind : kAttentionKinds) {
    constexpr int64_t kTokens = 1100;  // three splits
    AttentionLayer layer(kind, 1, 4, kTokens, random_);
    layer.params.block_size = kind == AttentionKind::kBlockLocal ? 600 : 0;
    const std::vector<float> packed = RandomPacked(layer, kTokens);
    double largest = 0;
    const std::vector<double> reference = AttentionReference(layer, packed, {}, kNever, &largest);
    // The CPU's kernel runs the tokens between: only the steps are in question.
    AttentionRunner cpu(layer, 1);
    DeviceAttention device(layer, 1);
    int64_t done = 0;
    for (const int64_t t : {511, 512, 513, 600, 1023, 1024, 1025, 1099}) {
      const int64_t width = layer.packed_width();
      if (t > done) cpu.Run({{0, done, Tokens(packed, width, done, t)}});
      device.set_states(cpu.states());
      const std::vector<float> y = device.Step({{0, t, Tokens(packed, width, t, t + 1)}})[0];
      for (int64_t c = 0; c < layer.params.hid(); ++c) {
        ASSERT_NEAR(y[static_cast<size_t>(c)],
                    reference[static_cast<size_t>(t * layer.params.hid() + c)], 1e-5)
            << layer.Name() << " token " << t;
      }
      cpu.states() = device.states();
      done = t + 1;
    }
  }
}

// With many rows a block takes a row's splits in turn instead of one.
TEST_F(CudaAttentionTest, SplitsAreTheSameBitsInALargeBatch) {
  constexpr int64_t kTokens = 1100;
  const AttentionLayer layer(AttentionKind::kDot, 1, 4, kTokens, random_);
  const std::vector<float> packed = RandomPacked(layer, kTokens);
  const int64_t width = layer.packed_width();
  AttentionRunner cpu(layer, 1);
  cpu.Run({{0, 0, Tokens(packed, width, 0, kTokens - 1)}});
  DeviceAttention device(layer, 1);
  device.set_states(cpu.states());
  std::vector<AttentionChunk> chunks = {
      {0, kTokens - 1, Tokens(packed, width, kTokens - 1, kTokens)}};
  const std::vector<float> alone = device.Step(chunks)[0];
  const std::vector<float> after = device.states();
  device.set_states(cpu.states());
  chunks.insert(chunks.begin(), 1600, {-1, 5, chunks[0].packed});
  EXPECT_TRUE(SameBits(device.Step(chunks).back(), alone));
  EXPECT_TRUE(SameBits(device.states(), after));
}

TEST_F(CudaAttentionTest, FullDecodeLetsGeneratedTokensSeeEverything) {
  for (const int64_t block : {4, 32}) {
    for (const bool global : {true, false}) {
      AttentionLayer layer(AttentionKind::kBlockLocal, 2, 8, 130, random_);
      layer.params.block_size = block;
      layer.params.global_token = global;
      layer.params.full_decode = true;
      const std::vector<float> packed = RandomPacked(layer, 130);
      DeviceAttention device(layer, 1);
      ExpectClose(device.RunCut(packed, {50, 50, 1, 1, 4, 1}, 105), layer, packed, {}, 105);
      ExpectClose(device.RunCut(packed, {128, 1}), layer, packed);
    }
  }
}

TEST_F(CudaAttentionTest, Bf16InputsAndOutputs) {
  constexpr int64_t kTokens = 100;
  for (const AttentionKind kind : kAttentionKinds) {
    for (const int64_t width : Few({8, 16, 33, 64, 80, 128}, {16, 33, 64, 80})) {
      AttentionLayer layer(kind, 2, width, kTokens, random_);
      const std::vector<float> packed = RandomPacked(layer, kTokens, Number::kBf16);
      for (const Number out : {Number::kBf16, Number::kFp32}) {
        // The output's rounding alone: 2^-9.
        const double tolerance = 1e-2;
        ExpectClose(DeviceAttention(layer, 1, Number::kBf16, out).RunCut(packed, {60, 1, 1, 3}),
                    layer, packed, {}, kNever, tolerance);
        layer.params.causal = false;
        ExpectClose(DeviceAttention(layer, 1, Number::kBf16, out).Encode({packed}, {})[0], layer,
                    packed, {}, kNever, tolerance);
        layer.params.causal = true;
      }
    }
  }
}

// The scalar path would hide a tile that came out as NaN; weights rounded to bf16 tell them apart.
TEST_F(CudaAttentionTest, FiniteTilesComeFromTensorCores) {
  constexpr int64_t kTokens = 200;
  for (const AttentionKind kind : {AttentionKind::kDot, AttentionKind::kBlockLocal}) {
    for (const int64_t width : {16, 64, 128}) {
      AttentionLayer layer(kind, 1, width, kTokens, random_);
      const std::vector<float> packed = RandomPacked(layer, kTokens, Number::kBf16);
      double largest = 0;
      const std::vector<double> reference = AttentionReference(layer, packed, {}, kNever, &largest);
      DeviceAttention device(layer, 1, Number::kBf16, Number::kFp32);
      const std::vector<float> y = device.RunCut(packed, {70, 65});
      for (int64_t t = 8; t < kTokens; ++t) {
        double worst = 0;
        for (int64_t c = 0; c < width; ++c) {
          const auto i = static_cast<size_t>(t * width + c);
          worst = std::max(worst, std::abs(y[i] - reference[i]));
        }
        ASSERT_GT(worst, 5e-6) << layer.Name() << " token " << t;
      }
    }
  }
}

TEST_F(CudaAttentionTest, SixteenBitOutputsOfFp32Inputs) {
  constexpr int64_t kTokens = 40;
  for (const AttentionKind kind : {AttentionKind::kDot, AttentionKind::kBlockLocal}) {
    const AttentionLayer layer(kind, 2, 16, kTokens, random_);
    const std::vector<float> packed = RandomPacked(layer, kTokens);
    for (const Number out : {Number::kBf16, Number::kFp16}) {
      ExpectClose(DeviceAttention(layer, 1, Number::kFp32, out).RunCut(packed, {33, 1}), layer,
                  packed, {}, kNever, out == Number::kBf16 ? 4e-3 : 5e-4);
    }
  }
}

// Integers that make every score exact, so that only the softmax is tested.
TEST_F(CudaAttentionTest, ScoresOfTenThousandStayExact) {
  constexpr int64_t kTokens = 131;
  for (const AttentionKind kind : {AttentionKind::kDot, AttentionKind::kBlockLocal}) {
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
    ASSERT_GT(largest, 2000);
    const std::vector<float> y = DeviceAttention(layer, 1).RunCut(packed, {100, 1});
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], reference[i], 3e-6);
  }
}

TEST_F(CudaAttentionTest, RisingAndFallingScoresEqualFloat64) {
  constexpr int64_t kTokens = 150;
  for (const double slope : {1e4, -1e4, 100.0, -100.0}) {
    AttentionLayer layer(AttentionKind::kDot, 1, 1, kTokens, random_);
    std::vector<float> packed = RandomPacked(layer, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      packed[static_cast<size_t>(3 * t)] = 1;
      // Multiples of 1/8 are exact in whatever the products are made of.
      packed[static_cast<size_t>(3 * t + 1)] = static_cast<float>(
          std::round(8 * slope * (static_cast<double>(t) / kTokens * 2 - 1)) / 8);
    }
    double largest = 0;
    const std::vector<double> reference = AttentionReference(layer, packed, {}, kNever, &largest);
    const std::vector<float> y = DeviceAttention(layer, 1).RunCut(packed, {110, 1});
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], reference[i], 1e-5) << slope;
  }
}

TEST_F(CudaAttentionTest, ExtremeInputsStayFinite) {
  constexpr int64_t kTokens = 70;
  for (const AttentionKind kind : kAttentionKinds) {
    for (const Number type : {Number::kFp32, Number::kBf16}) {
      for (const double scale : {1e2, 1e4}) {
        const AttentionLayer layer(kind, 2, 8, kTokens, random_);
        const std::vector<float> packed = RandomPacked(layer, kTokens, type, scale);
        const std::vector<float> y =
            DeviceAttention(layer, 1, type, Number::kFp32).RunCut(packed, {65, 1});
        float top = 0;
        for (const float x : packed) top = std::max(top, std::abs(x));
        for (const float value : y) ASSERT_LE(std::abs(value), top * 1.0001F) << layer.Name();
      }
    }
  }
}

TEST_F(CudaAttentionTest, MaskedTokensLeaveNoTrace) {
  constexpr int64_t kTokens = 150;
  for (const AttentionKind kind : kAttentionKinds) {
    for (const bool causal : {true, false}) {
      AttentionLayer layer(kind, 2, 9, kTokens, random_);
      layer.params.causal = causal;
      layer.params.global_token = layer.params.block_size > 0 && random_.Below(2) == 0;
      std::vector<float> packed = RandomPacked(layer, kTokens);
      // Token 0, a whole block, single tokens, padding at the end; and a finite bias.
      std::vector<float> mask(kTokens, 0.0F);
      mask[0] = -kInfinity;
      std::fill(mask.begin() + 32, mask.begin() + 96, std::numeric_limits<float>::lowest());
      for (size_t i = 100; i < 120; i += 3) mask[i] = -1.5F;
      std::fill(mask.begin() + 120, mask.end(), -kInfinity);
      const std::vector<float> y = DeviceAttention(layer, 1).Encode({packed}, {mask})[0];
      ExpectClose(y, layer, packed, mask);

      // Nothing of a masked token's key and value passes, not even NaN.
      for (int64_t t = 0; t < kTokens; ++t) {
        if (mask[static_cast<size_t>(t)] > kMaskedBelow) continue;
        std::fill_n(packed.begin() + t * layer.packed_width() + layer.params.KeyColumn(),
                    layer.params.StrengthColumn() - layer.params.KeyColumn(),
                    std::numeric_limits<float>::quiet_NaN());
      }
      EXPECT_TRUE(SameBits(DeviceAttention(layer, 1).Encode({packed}, {mask})[0], y))
          << layer.Name();
    }
  }
}

TEST_F(CudaAttentionTest, RowsThatSeeNoKeyAreZero) {
  constexpr int64_t kTokens = 70;
  const std::vector<float> mask(kTokens, -kInfinity);
  for (const AttentionKind kind : kAttentionKinds) {
    for (const bool causal : {true, false}) {
      AttentionLayer layer(kind, 2, 5, kTokens, random_);
      layer.params.causal = causal;
      const std::vector<float> y =
          DeviceAttention(layer, 1).Encode({RandomPacked(layer, kTokens)}, {mask})[0];
      EXPECT_TRUE(SameBits(y, std::vector<float>(y.size(), 0.0F))) << layer.Name();
    }
  }
}

TEST_F(CudaAttentionTest, VectorsOfNoLengthHaveCosineZero) {
  constexpr int64_t kTokens = 40;
  const AttentionLayer layer(AttentionKind::kCosine, 2, 6, kTokens, random_);
  std::vector<float> packed = RandomPacked(layer, kTokens);
  for (const int64_t t : {0, 7, 39}) {  // query and key
    std::fill_n(packed.begin() + t * layer.packed_width(), layer.params.ValueColumn(),
                t == 7 ? 1e-9F : 0.0F);
  }
  ExpectClose(DeviceAttention(layer, 1).RunCut(packed, {20, 1}), layer, packed);
}

TEST_F(CudaAttentionTest, CosineIgnoresTheLengthOfQueriesAndKeys) {
  constexpr int64_t kTokens = 40;
  const AttentionLayer layer(AttentionKind::kCosine, 1, 8, kTokens, random_);
  std::vector<float> packed = RandomPacked(layer, kTokens);
  const std::vector<float> y = DeviceAttention(layer, 1).RunCut(packed, {36, 1});
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < layer.params.ValueColumn(); ++c) {
      packed[static_cast<size_t>(t * layer.packed_width() + c)] *= t % 2 == 0 ? 1e-4F : 1e30F;
    }
  }
  const std::vector<float> y2 = DeviceAttention(layer, 1).RunCut(packed, {36, 1});
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], y2[i], 1e-5);
}

}  // namespace
}  // namespace aft
