// The attention kernels against float64: every shape that decides which kernel runs and how it cuts
// its work, and what only attention promises. What all mixers promise is in relations_test.cc.

#include "model/kernels/cuda/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda/layer.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

constexpr Storage kBf16ToFp32 = {Number::kBf16, Number::kFp32};

std::vector<int64_t> Few(const std::vector<int64_t>& all, const std::vector<int64_t>& few) {
  return Full() ? all : few;
}

class CudaAttentionTest : public testing::Test {
 protected:
  // A prompt and steps as `lengths` says, and the text both ways.
  void ExpectAll(const LayerShape& shape, int64_t tokens, const std::vector<int64_t>& lengths,
                 Storage storage = {}) {
    DeviceLayer(random_, shape, 1, storage).ExpectRuns(random_, tokens, lengths);
    DeviceLayer(random_, BothWays(shape), 1, storage).ExpectEncodes(random_, tokens);
  }

  TestRandom random_;
};

TEST_F(CudaAttentionTest, EveryWidthAndNumberOfHeads) {
  for (const MixerKind kind : kAttentions) {
    for (const int64_t width : Few({1, 8, 16, 33, 64, 80, 96, 128}, {1, 33, 64, 80})) {
      for (const int64_t heads : Few({1, 2, 3, 4}, {1 + random_.Below(2)})) {
        ExpectAll(Attention(kind, heads, width, 70), 70, {50, 0, 0, 7});
      }
    }
  }
}

TEST_F(CudaAttentionTest, EveryWidthInBf16) {
  for (const MixerKind kind : kAttentions) {
    for (const int64_t width : Few({8, 16, 33, 64, 80, 128}, {16, 33, 64, 80})) {
      for (const Storage& storage : {kBf16Storage, kBf16ToFp32}) {
        ExpectAll(Attention(kind, 2, width, 100), 100, {60, 0, 0, 3}, storage);
      }
    }
  }
}

// A step's lanes hold four groups of columns each; 516 columns are two blocks'.
TEST_F(CudaAttentionTest, StepsOfWideValues) {
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kAdditive}) {
    for (const int64_t width : {132, 516}) {
      DeviceLayer(random_, Attention(kind, 1, width, 40)).ExpectRuns(random_, 40, {33, 0});
    }
  }
}

TEST_F(CudaAttentionTest, EveryLength) {
  for (const MixerKind kind : kAttentions) {
    for (const int64_t tokens :
         Few({1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 131, 200}, {1, 33, 64, 131})) {
      const LayerShape shape = Attention(kind, 1, 8, tokens);
      ExpectAll(shape, tokens, {tokens});
      DeviceLayer(random_, shape).ExpectRuns(random_, tokens, {(tokens + 1) / 2});
    }
  }
}

TEST_F(CudaAttentionTest, EveryBlockAndLength) {
  for (const int64_t block : Few({1, 2, 4, 16, 32, 33, 64, 128}, {1, 16, 33, 64})) {
    for (const int64_t tokens : Few({1, 2, block - 1, block, block + 1, 2 * block, 2 * block + 3,
                                     3 * block + 1, 5 * block},
                                    {2 * block + 3, 4 * block})) {
      if (tokens == 0) continue;
      for (const bool global : {true, false}) {
        const LayerShape shape = Blocks(2, 4, block, global);
        ExpectAll(shape, tokens, {tokens});
        DeviceLayer(random_, shape).ExpectRuns(random_, tokens, {3, 0});
      }
    }
  }
}

TEST_F(CudaAttentionTest, LongContextsAreSplitOverBlocks) {
  constexpr int64_t kTokens = 1100;  // three splits
  for (const MixerKind kind : kAttentions) {
    const bool local = kind == MixerKind::kBlockLocal;
    DeviceLayer device(random_, local ? Blocks(1, 4, 600) : Attention(kind, 1, 4, kTokens));
    const Matrix packed = device.Input(random_, kTokens);
    const std::vector<double> all = device.Reference(packed);
    // The CPU's kernel runs the tokens between: only the steps are in question.
    int64_t done = 0;
    for (const int64_t t : {511, 512, 513, 600, 1023, 1024, 1025, 1099}) {
      if (t > done) device.OnCpu({device.Chunk(packed, done, t)});
      device.set_states(device.cpu_states());
      const Matrix y = device.Step({device.Chunk(packed, t, t + 1)})[0];
      const auto row = all.begin() + t * device.hid();
      EXPECT_TRUE(Close(y, std::vector<double>(row, row + device.hid()), tolerance::kFp32))
          << device.Name() << " token " << t;
      device.cpu_states() = device.states();
      done = t + 1;
    }
  }
}

// With many rows a block takes a row's splits in turn instead of one.
TEST_F(CudaAttentionTest, SplitsAreTheSameBitsInALargeBatch) {
  constexpr int64_t kTokens = 1100;
  DeviceLayer device(random_, Attention(MixerKind::kDotProduct, 1, 4, kTokens));
  const Matrix packed = device.Input(random_, kTokens);
  device.OnCpu({device.Chunk(packed, 0, kTokens - 1)});
  device.set_states(device.cpu_states());
  std::vector<LayerChunk> chunks = {device.Chunk(packed, kTokens - 1, kTokens)};
  const Matrix alone = device.Step(chunks)[0];
  const Matrix after = device.states();
  device.set_states(device.cpu_states());
  chunks.insert(chunks.begin(), 1600, {-1, 5, chunks[0].packed});
  EXPECT_TRUE(SameBits(device.Step(chunks).back(), alone));
  EXPECT_TRUE(SameBits(device.states(), after));
}

TEST_F(CudaAttentionTest, FullDecodeLetsGeneratedTokensSeeEverything) {
  for (const int64_t block : {4, 32}) {
    for (const bool global : {true, false}) {
      LayerShape shape = Blocks(2, 8, block, global);
      shape.config.full_decode = true;
      DeviceLayer device(random_, shape);
      const Matrix packed = device.Input(random_, 130);
      const Matrix prompt = device.Run(packed, {128, 0});
      device.ExpectNear(prompt, packed);
      // The generated ones are those of a mixer without blocks.
      constexpr int64_t kGenerated = 105;
      const DeviceLayer all(random_, Attention(MixerKind::kDotProduct, 2, 8));
      std::vector<double> expected = device.Reference(packed);
      const std::vector<double> seeing_all = all.Reference(packed);
      const int64_t from = kGenerated * device.hid();
      std::copy(seeing_all.begin() + from, seeing_all.end(), expected.begin() + from);
      device.ExpectNear(device.Run(packed, {50, 50, 0, 0, 4, 0}, 0, kGenerated), packed, expected);
    }
  }
}

// The scalar path would hide a tile that came out as NaN; weights rounded to bf16 tell them apart.
TEST_F(CudaAttentionTest, FiniteTilesComeFromTensorCores) {
  constexpr int64_t kTokens = 200;
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kBlockLocal}) {
    for (const int64_t width : {16, 64, 128}) {
      DeviceLayer device(random_, Attention(kind, 1, width, kTokens), 1, kBf16ToFp32);
      const Matrix packed = device.Input(random_, kTokens);
      const std::vector<double> reference = device.Reference(packed);
      const Matrix y = device.Run(packed, {70, 65});
      for (int64_t t = 8; t < kTokens; ++t) {
        const auto row = reference.begin() + t * width;
        const Errors errors =
            CompareWith(std::vector<double>(row, row + width), Rows(y, width, t, t + 1));
        ASSERT_GT(errors.worst, 5e-6) << device.Name() << " token " << t;
      }
    }
  }
}

// Integers that make every score exact, so that only the softmax is tested.
TEST_F(CudaAttentionTest, ScoresOfTenThousandStayExact) {
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kBlockLocal}) {
    DeviceLayer device(random_, Attention(kind, 1, 16));
    Matrix packed = device.Input(random_, 131);
    for (int64_t i = 0; i < static_cast<int64_t>(packed.size()); ++i) {
      if (i % device.packed_width() >= device.value_column()) continue;
      packed[static_cast<size_t>(i)] = static_cast<float>(random_.Below(101) - 50);
    }
    EXPECT_TRUE(
        Close(device.Run(packed, {100, 0}), device.Reference(packed), tolerance::kReordered));
  }
}

TEST_F(CudaAttentionTest, RisingAndFallingScores) {
  constexpr int64_t kTokens = 150;
  for (const double slope : {1e4, -1e4, 100.0, -100.0}) {
    DeviceLayer device(random_, Attention(MixerKind::kDotProduct, 1, 1));
    Matrix packed = device.Input(random_, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      packed[static_cast<size_t>(3 * t)] = 1;
      // Multiples of 1/8 are exact in whatever the products are made of.
      packed[static_cast<size_t>(3 * t + 1)] = static_cast<float>(
          std::round(8 * slope * (static_cast<double>(t) / kTokens * 2 - 1)) / 8);
    }
    EXPECT_TRUE(Close(device.Run(packed, {100, 0}), device.Reference(packed), tolerance::kFp32));
  }
}

TEST_F(CudaAttentionTest, ExtremeInputsStayFinite) {
  for (const MixerKind kind : kAttentions) {
    for (const Storage& storage : {Storage(), kBf16ToFp32}) {
      for (const float scale : {1e2F, 1e4F}) {
        DeviceLayer device(random_, Attention(kind, 2, 8, 70), 1, storage);
        Matrix packed = device.Input(random_, 70);
        for (float& x : packed) x *= scale;
        packed = Rounded(packed, storage.in);
        const bool fp32 = storage.in == Number::kFp32;
        const float mean = fp32 ? tolerance::kMean : tolerance::kMeanBf16;
        float top = 0;
        for (const float x : packed) top = std::max(top, std::abs(x));
        for (const float y : device.Run(packed, {65, 0})) {
          ASSERT_LE(std::abs(y), top * (1 + mean)) << device.Name();
        }
      }
    }
  }
}

TEST_F(CudaAttentionTest, VectorsOfNoLengthHaveCosineZero) {
  DeviceLayer device(random_, Attention(MixerKind::kCosine, 2, 6, 40));
  Matrix packed = device.Input(random_, 40);
  for (const int64_t t : {0, 7, 39}) {  // query and key
    std::fill_n(packed.begin() + t * device.packed_width(), device.value_column(),
                t == 7 ? 1e-9F : 0.0F);
  }
  device.ExpectNear(device.Run(packed, {20, 0}), packed);
}

TEST_F(CudaAttentionTest, CosineIgnoresTheLengthOfQueriesAndKeys) {
  DeviceLayer device(random_, Attention(MixerKind::kCosine, 1, 8, 40));
  Matrix packed = device.Input(random_, 40);
  const Matrix y = device.Run(packed, {36, 0});
  for (int64_t i = 0; i < static_cast<int64_t>(packed.size()); ++i) {
    if (i % device.packed_width() >= device.value_column()) continue;
    packed[static_cast<size_t>(i)] *= i / device.packed_width() % 2 == 0 ? 1e-4F : 1e30F;
  }
  EXPECT_TRUE(Close(device.Run(packed, {36, 0}), y, tolerance::kFp32));
}

// More rows than one round of the search for a tile's row takes, some of them empty.
TEST_F(CudaAttentionTest, ManyShortRowsFindTheirTiles) {
  constexpr int64_t kRows = 75;
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kLocation}) {
    DeviceLayer device(random_, Attention(kind, 1, 4, 110), kRows);
    std::vector<Matrix> texts;
    std::vector<LayerChunk> chunks;
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t tokens = i % 20 == 3 ? 64 + random_.Below(20) : random_.Below(4);
      texts.push_back(device.Input(random_, tokens));
      chunks.push_back({static_cast<int32_t>(kRows - 1 - i), 0, texts.back()});
    }
    const std::vector<Matrix> encoded = device.Encode(texts);
    EXPECT_EQ(device.Prefill(chunks), encoded);
    for (size_t i = 0; i < kRows; ++i) {
      if (!texts[i].empty()) device.ExpectNear(encoded[i], texts[i]);
    }
  }
}

TEST_F(CudaAttentionTest, RefusesWhatItCannotDo) {
  kernels::AttentionParams params = {
      .score = kernels::Score::kCosine, .score_width = 4, .value_width = 4, .capacity = 110};
  const auto refused = [&](Number type) {
    const kernels::cuda::In in = {nullptr, type, 13};
    EXPECT_NE(kernels::cuda::AttentionStep(params, {}, in, {}, {}, nullptr, nullptr), 0);
    EXPECT_NE(kernels::cuda::AttentionPrefill(params, {}, in, {}, {}, nullptr, nullptr), 0);
    if (params.causal) {
      EXPECT_NE(kernels::cuda::AttentionEncode(params, {}, in, {}, nullptr, nullptr), 0);
    }
  };
  refused(Number::kFp16);
  params.block_size = 16;
  refused(Number::kFp32);
  params.block_size = 0;
  params.causal = false;
  refused(Number::kFp32);
}

}  // namespace
}  // namespace aft
