// ConvEncode: causal, bidirectional and on images, against float64.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cuda/conv_harness.h"

namespace aft::conv_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMasked = -std::numeric_limits<float>::infinity();

class CudaConvEncodeTest : public testing::Test {
 protected:
  Layer Bidirectional(int64_t hid, int64_t heads, int64_t taps, double spread = 1.0) {
    Layer layer(random_, hid, heads, taps, spread);
    layer.config.causal = false;
    return layer;
  }
  Layer Image(int64_t hid, int64_t heads, int64_t taps, double spread = 1.0) {
    Layer layer = Bidirectional(hid, heads, taps, spread);
    layer.config.grid = true;
    layer.Redraw(random_);
    return layer;
  }
  // Zeros, some normal numbers, and about one token in eight masked.
  std::vector<float> RandomMask(int64_t tokens) {
    std::vector<float> mask(static_cast<size_t>(tokens), 0.0F);
    for (float& x : mask) {
      const int64_t kind = random_.Below(8);
      if (kind < 3) x = static_cast<float>(random_.Normal());
      if (kind == 7) x = kMasked;
    }
    return mask;
  }

  TestRandom random_;
};

TEST_F(CudaConvEncodeTest, EqualsItsDefinitionInEveryShape) {
  for (const int64_t hid : {8, 24, 33, 64, 192}) {
    for (const int64_t heads : {int64_t{1}, int64_t{2}, hid / 8, hid}) {
      if (hid % heads != 0) continue;
      const Layer layer = Bidirectional(hid, heads, 7);
      const std::vector<float> packed = Input(random_, layer, "n1", 75);
      ExpectClose(Encode(layer, packed, {75}), Reference(layer, packed), Number::kFp32,
                  layer.Name());
    }
  }
}

TEST_F(CudaConvEncodeTest, EqualsItsDefinitionAtEveryLength) {
  for (const int64_t heads : {1, 8}) {
    for (const int64_t taps : {1, 3, 31, 131}) {
      const Layer layer = Bidirectional(16, heads, taps);
      for (const int64_t tokens : {1, 2, 15, 16, 17, 63, 64, 65, 131, 200, 330}) {
        const std::vector<float> packed = Input(random_, layer, "n1", tokens);
        ExpectClose(Encode(layer, packed, {tokens}), Reference(layer, packed), Number::kFp32,
                    absl::StrCat(layer.Name(), ", ", tokens, " tokens"));
      }
    }
  }
}

TEST_F(CudaConvEncodeTest, ExtremeKeysAndFiltersStayExact) {
  for (const std::string& keys : kKeySets) {
    for (const double spread : {0.1, 5.0, 20.0, 200.0}) {
      for (const int64_t heads : {1, 12}) {
        const Layer line = Bidirectional(12, heads, 9, spread);
        const std::vector<float> packed = Input(random_, line, keys, 130);
        ExpectClose(Encode(line, packed, {130}), Reference(line, packed), Number::kFp32,
                    absl::StrCat(keys, ", ", line.Name()), spread > 100 ? 10 : 1);
      }
      const Layer image = Image(12, 4, 5, spread);
      const std::vector<float> packed = Input(random_, image, keys, 9 * 8);
      ExpectClose(Encode(image, packed, {72}, {}, 8), Reference(image, packed, {}, 8),
                  Number::kFp32, absl::StrCat(keys, ", image, ", image.Name()),
                  spread > 100 ? 10 : 1);
    }
  }
}

TEST_F(CudaConvEncodeTest, EveryStorage) {
  for (const Storage& storage : kStorages) {
    for (const int64_t heads : {1, 12, 48}) {
      for (const bool grid : {false, true}) {
        const Layer layer = grid ? Image(48, heads, 3) : Bidirectional(48, heads, 7);
        const std::vector<float> packed = Input(random_, layer, "n1", 80, storage.in);
        const int64_t width = grid ? 10 : 0;
        ExpectClose(Encode(layer, packed, {80}, {}, width, storage),
                    Reference(layer, packed, {}, width), storage.out,
                    absl::StrCat(layer.Name(), ", ", storage.Name()));
      }
    }
  }
}

TEST_F(CudaConvEncodeTest, ImagesOfEveryShape) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {
      {1, 1}, {1, 9}, {9, 1}, {2, 3}, {8, 8}, {14, 14}, {3, 70}, {70, 3}, {20, 13}};
  for (const int64_t taps : {1, 3, 5, 11}) {
    for (const int64_t heads : {1, 3, 24}) {
      for (const auto& [height, width] : shapes) {
        if (heads == 24 && height * width > 100) continue;
        const Layer layer = Image(24, heads, taps);
        const int64_t tokens = height * width;
        const std::vector<float> packed = Input(random_, layer, "n1", tokens);
        std::vector<float> mask = RandomMask(tokens);
        mask[0] = 0;
        ExpectClose(Encode(layer, packed, {tokens}, mask, width),
                    Reference(layer, packed, mask, width), Number::kFp32,
                    absl::StrCat(layer.Name(), ", ", height, " x ", width));
      }
    }
  }
}

TEST_F(CudaConvEncodeTest, MaskedKeysContributeNothingWhateverTheyHold) {
  constexpr int64_t kTokens = 140;
  for (const bool causal : {true, false}) {
    for (const double spread : {1.0, 50.0}) {
      for (const int64_t heads : {1, 24}) {
        Layer layer(random_, 24, heads, 7, spread);
        layer.config.causal = causal;
        if (spread > 1) layer.w[0] = -100;  // a first token that weighs nothing
        std::vector<float> packed = Input(random_, layer, "n10", kTokens);
        std::vector<float> mask = RandomMask(kTokens);
        for (const int64_t t : {0, 1, 2}) mask[static_cast<size_t>(t)] = kMasked;
        mask[30] = -2e30F;
        mask[3] = 0;
        const std::vector<double> reference = Reference(layer, packed, mask);
        for (int64_t t = 0; t < kTokens; ++t) {
          if (mask[static_cast<size_t>(t)] > -1e30F) continue;
          for (int64_t i = layer.hid; i < layer.width(); ++i) {
            packed[static_cast<size_t>(t * layer.width() + i)] = kNan;
          }
        }
        const std::vector<float> y = Encode(layer, packed, {kTokens}, mask);
        ExpectClose(y, reference, Number::kFp32, absl::StrCat(layer.Name(), causal));
        // Causal: the first three tokens see no key at all.
        for (int64_t i = 0; i < 3 * layer.hid && causal; ++i) {
          EXPECT_EQ(y[static_cast<size_t>(i)], 0.0F);
        }
        const std::vector<float> none(kTokens, kMasked);
        for (const float zero : Encode(layer, packed, {kTokens}, none)) EXPECT_EQ(zero, 0.0F);
      }
    }
  }
}

TEST_F(CudaConvEncodeTest, CausalEncodeIsPrefill) {
  for (const int64_t heads : {2, 24}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      Layer layer(random_, 24, heads, 9);
      layer.config.ring = ring;
      const std::vector<float> packed = Input(random_, layer, "n10", 150);
      EXPECT_TRUE(
          SameBits(Encode(layer, packed, {150}), Runner(layer, 1).Prefill({{0, 0, packed}})[0]));
    }
  }
}

TEST_F(CudaConvEncodeTest, NeighboursChangeNoBit) {
  for (const bool grid : {false, true}) {
    for (const int64_t heads : {2, 24}) {
      const Layer layer = grid ? Image(24, heads, 3) : Bidirectional(24, heads, 9);
      const std::vector<float> packed = Input(random_, layer, "n10", 210);
      const int64_t width = grid ? 10 : 0;
      const std::vector<float> y = Encode(layer, packed, {70, 10, 130}, {}, width);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 70}, {70, 80}, {80, 210}}) {
        EXPECT_TRUE(SameBits(
            Encode(layer, Rows(packed, layer.width(), begin, end), {end - begin}, {}, width),
            Rows(y, layer.hid, begin, end)));
      }
    }
  }
}

TEST_F(CudaConvEncodeTest, NanStaysInItsSequenceAndChannelOrHead) {
  for (const int64_t heads : {3, 24}) {
    const Layer layer = Bidirectional(24, heads, 5);
    std::vector<float> packed = Input(random_, layer, "n1", 100);
    const std::vector<float> clean = Encode(layer, packed, {80, 20});
    const int64_t width = 24 / heads;
    packed[static_cast<size_t>(90 * layer.width() + 24)] = kNan;               // key of head 0
    packed[static_cast<size_t>(10 * layer.width() + 24 + heads + 20)] = kNan;  // channel 20
    const std::vector<float> y = Encode(layer, packed, {80, 20});
    for (int64_t t = 0; t < 100; ++t) {
      for (int64_t c = 0; c < 24; ++c) {
        const auto i = static_cast<size_t>(t * 24 + c);
        if ((t >= 80 && c < width) || (t < 80 && c == 20)) {
          EXPECT_FALSE(std::isfinite(y[i])) << t << ", " << c;
        } else {
          EXPECT_NEAR(y[i], clean[i], 1e-5) << t << ", " << c;
        }
      }
    }
  }
}

TEST_F(CudaConvEncodeTest, RefusesWhatItCannotDo) {
  const Layer layer = Image(8, 2, 3);
  const DeviceArray<float> filter(layer.Filter());
  const DeviceArray<float> memory(64);
  const auto run = [&](int64_t taps, int64_t grid_width) {
    kernels::cuda::ConvModel model = layer.Model(filter);
    model.taps = taps;
    kernels::cuda::Texts texts;
    texts.grid_width = grid_width;
    return kernels::cuda::ConvEncode(model, texts, {memory.get(), Number::kFp32, 18},
                                     {memory.get(), Number::kFp32, 8}, memory.get(), nullptr);
  };
  EXPECT_EQ(run(3, 4), 0);
  EXPECT_NE(run(2, 4), 0);    // even
  EXPECT_NE(run(3, 0), 0);    // images of no width
  EXPECT_NE(run(999, 4), 0);  // a filter that no block can hold
}

}  // namespace
}  // namespace aft::conv_test
