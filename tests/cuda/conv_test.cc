// Tests of the AFT-conv kernels on a GPU alone: wide blocks, many tiles, refusals. The tests of
// shapes, lengths, filters and images are in tests/property/aft_test.cc, those of what all mixers
// promise in relations_test.cc.

#include "model/kernels/cuda/conv/conv.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "model/config/formats.h"
#include "tests/cuda/layer.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

class CudaConvTest : public testing::Test {
 protected:
  TestRandom random_;
};

// Tests one head that is wider than all lanes of a block, and more heads than a block has threads.
TEST_F(CudaConvTest, WideBlocks) {
  for (const int64_t heads : {1, 600}) {
    for (const int64_t taps : {2, 40}) {
      DeviceLayer(random_, Conv(1200, heads, taps)).ExpectRuns(random_, 3, {0});
    }
  }
}

// The filter gives the second token's own key, -35, its largest weight, although the first key is
// 0. A later key is 55, so the key that matters is 90 below the largest of the text.
TEST_F(CudaConvTest, FaintKeysCountWhereTheKeysRiseLater) {
  for (const int64_t heads : {1, 8}) {
    Matrix filter;
    for (int64_t head = 0; head < heads; ++head) filter.insert(filter.end(), {19, -19});
    DeviceLayer layer(Conv(16, heads, 2), {{"conv.w", filter}});
    Matrix packed = layer.Input(random_, 20);
    for (int64_t t = 0; t < 20; ++t) {
      const float key = t == 1 ? -35.0F : t == 10 ? 55.0F : 0.0F;
      std::fill_n(packed.begin() + t * layer.packed_width() + layer.hid(), heads, key);
    }
    layer.ExpectNear(layer.Run(packed, {20}), packed);
  }
}

// Cuts at multiples of a tile, 64 tokens, give the same bits as one chunk.
TEST_F(CudaConvTest, CutsBetweenTilesChangeNoBit) {
  for (const int64_t heads : {1, 24}) {
    DeviceLayer layer(random_, Conv(24, heads, 9), 2);
    const Matrix packed = layer.Input(random_, 200, "n10");
    EXPECT_TRUE(SameBits(layer.Run(packed, {64, 128, 8}, 0), layer.Run(packed, {200}, 1)));
  }
}

TEST_F(CudaConvTest, ManyTiles) {
  for (const int64_t heads : {1, 8}) {
    DeviceLayer(random_, Conv(8, heads, 9)).ExpectRuns(random_, 64 * 19 + 5, {64 * 19 + 5});
  }
}

TEST_F(CudaConvTest, TokensThatSeeNoKeyAreZeroWithExtremeFilters) {
  for (const int64_t heads : {1, 24}) {
    for (const bool causal : {true, false}) {
      Matrix filter = random_.Normals(heads * 7, 50);
      filter[0] = -100;
      const MixerCase shape = Conv(24, heads, 7, 50);
      DeviceLayer layer(causal ? shape : BothWays(shape), {{"conv.w", filter}});
      const Matrix packed = layer.Input(random_, 140, "n10");
      Matrix mask(140, 0.0F);
      std::fill_n(mask.begin(), 3, kMasked);
      mask[30] = -2e30F;
      const Matrix y = layer.Encode({packed}, {mask})[0];
      layer.ExpectNear(y, packed, mask);
      if (causal) {
        EXPECT_EQ(Rows(y, 24, 0, 3), Matrix(3 * 24, 0.0F));
      }
    }
  }
}

TEST_F(CudaConvTest, RefusesWhatItCannotDo) {
  const DeviceArray<float> memory(64);
  const kernels::cuda::ConvModel good = {.hid = 8, .heads = 2, .taps = 3, .filter = memory.get()};
  const auto step = [&](const kernels::cuda::ConvModel& model, Number in, Number out) {
    return kernels::cuda::ConvStep(model, {}, {memory.get(), in, 18}, {memory.get(), 64},
                                   {memory.get(), out, 8}, nullptr);
  };
  kernels::cuda::ConvModel model = good;
  EXPECT_EQ(step(model, Number::kFp32, Number::kFp32), 0);
  for (const FormatSpec& type : kFormats) {
    if (type.format == Number::kFp32) continue;
    EXPECT_NE(step(model, type.format, type.format), 0);
    EXPECT_NE(step(model, type.format, Number::kFp32), 0);
    EXPECT_EQ(step(model, Number::kFp32, type.format) != 0, IsQuantized(type.format));
  }
  model.heads = 3;
  EXPECT_NE(step(model, Number::kFp32, Number::kFp32), 0);
  model = good;
  model.causal = false;
  EXPECT_NE(step(model, Number::kFp32, Number::kFp32), 0);

  model.grid = true;
  const auto encode = [&](int64_t taps, int64_t grid_width) {
    model.taps = taps;
    kernels::cuda::Texts texts;
    texts.grid_width = grid_width;
    return kernels::cuda::ConvEncode(model, texts, {memory.get(), Number::kFp32, 18},
                                     {memory.get(), Number::kFp32, 8}, memory.get(), nullptr);
  };
  EXPECT_EQ(encode(3, 4), 0);
  EXPECT_NE(encode(2, 4), 0);    // even
  EXPECT_NE(encode(3, 0), 0);    // images of no width
  EXPECT_NE(encode(999, 4), 0);  // a filter that no block can hold
  model.hid = model.heads = kernels::cuda::kMaxRows + 1;
  EXPECT_EQ(encode(3, 4), 1);  // more heads than a grid can have: an invalid value
}

// Tests all combinations of shapes, taps and lengths, each with one of the storages in turn.
TEST_F(CudaConvTest, TheWholeMatrix) {
  if (!Full()) GTEST_SKIP() << "AFT_CUDA_FULL is not set";
  size_t next = 0;
  for (const int64_t hid : {8, 24, 33, 64, 96, 192}) {
    for (const int64_t heads : {int64_t{1}, int64_t{2}, int64_t{4}, hid / 8, hid}) {
      if (hid % heads != 0) continue;
      for (const int64_t taps : {1, 2, 3, 7, 31, 33}) {
        const MixerCase shape = Conv(hid, heads, taps);
        DeviceLayer layer(random_, random_.Below(2) == 1 ? WithBf16Ring(shape) : shape, 1,
                          kStorages[next++ % std::size(kStorages)]);
        for (const int64_t tokens : {1, 2, 31, 63, 64, 65, 131, 200}) {
          layer.ExpectRuns(random_, tokens, {tokens}, "n10");
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft
