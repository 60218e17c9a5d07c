// ConvPrefill against float64, ConvStep and the CPU's kernel.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cuda/conv_harness.h"

namespace aft::conv_test {
namespace {

std::vector<float> Prefill(const Layer& layer, const std::vector<float>& packed,
                           Storage storage = {}) {
  return Runner(layer, 1, storage).Prefill({{0, 0, packed}})[0];
}

class CudaConvPrefillTest : public testing::Test {
 protected:
  TestRandom random_;
};

TEST_F(CudaConvPrefillTest, EqualsItsDefinitionInEveryShape) {
  for (const int64_t hid : {8, 24, 33, 64, 96, 192}) {
    for (const int64_t heads : {int64_t{1}, int64_t{2}, int64_t{4}, hid / 8, hid}) {
      if (hid % heads != 0) continue;
      for (const int64_t taps : {1, 7}) {
        const Layer layer(random_, hid, heads, taps);
        const std::vector<float> packed = Input(random_, layer, "n1", 75);
        ExpectClose(Prefill(layer, packed), Reference(layer, packed), Number::kFp32, layer.Name());
      }
    }
  }
}

TEST_F(CudaConvPrefillTest, EqualsItsDefinitionAtEveryLength) {
  for (const int64_t heads : {1, 8}) {
    for (const int64_t taps : {1, 2, 3, 7, 31, 33, 150}) {
      const Layer layer(random_, 16, heads, taps);
      for (const int64_t tokens : {int64_t{1}, int64_t{2}, taps - 1, taps, taps + 1, int64_t{63},
                                   int64_t{64}, int64_t{65}, int64_t{131}, int64_t{200}}) {
        if (tokens == 0) continue;
        const std::vector<float> packed = Input(random_, layer, "n1", tokens);
        ExpectClose(Prefill(layer, packed), Reference(layer, packed), Number::kFp32,
                    absl::StrCat(layer.Name(), ", ", tokens, " tokens"));
      }
    }
  }
}

TEST_F(CudaConvPrefillTest, ExtremeKeysAndFiltersStayExact) {
  for (const std::string& keys : kKeySets) {
    for (const double spread : {0.1, 5.0, 20.0, 200.0}) {
      for (const int64_t heads : {1, 16}) {
        const Layer layer(random_, 16, heads, 9, spread);
        const std::vector<float> packed = Input(random_, layer, keys, 140);
        ExpectClose(Prefill(layer, packed), Reference(layer, packed), Number::kFp32,
                    absl::StrCat(keys, ", ", layer.Name()), spread > 100 ? 10 : 1);
      }
    }
  }
}

// A later key is 55 above the first, but the second token's largest weight is of its own key, 35
// below, which the filter lifts: 90 below the largest in all.
TEST_F(CudaConvPrefillTest, FaintKeysCountWhereTheKeysRiseLater) {
  for (const int64_t heads : {1, 8}) {
    Layer layer(random_, 16, heads, 2);
    std::vector<float> packed = Input(random_, layer, "n1", 20);
    for (int64_t head = 0; head < heads; ++head) {
      layer.w[static_cast<size_t>(2 * head)] = 19;
      layer.w[static_cast<size_t>(2 * head + 1)] = -19;
      const auto key = [&](int64_t t) -> float& {
        return packed[static_cast<size_t>(t * layer.width() + layer.hid + head)];
      };
      for (int64_t t = 0; t < 20; ++t) key(t) = 0;
      key(1) = -35;
      key(10) = 55;
    }
    ExpectClose(Prefill(layer, packed), Reference(layer, packed), Number::kFp32, layer.Name());
  }
}

TEST_F(CudaConvPrefillTest, EveryStorage) {
  for (const Storage& storage : kStorages) {
    for (const int64_t heads : {1, 2, 3, 12, 48}) {
      for (const Number ring : {Number::kFp32, Number::kBf16}) {
        Layer layer(random_, 48, heads, 6);
        layer.config.ring = ring;
        const std::vector<float> packed = Input(random_, layer, "n1", 80, storage.in);
        Runner runner(layer, 1, storage);
        ExpectClose(runner.RunCut(packed, {3, 30, 40}), Reference(layer, packed), storage.out,
                    absl::StrCat(layer.Name(), ", ", storage.Name()));
      }
    }
  }
}

TEST_F(CudaConvPrefillTest, AnyCutAndStepsGiveTheSame) {
  for (const int64_t heads : {2, 24}) {
    for (const int64_t taps : {1, 2, 31, 90}) {
      for (const double spread : {1.0, 30.0}) {
        Layer layer(random_, 24, heads, taps, spread);
        layer.config.ring = spread > 1 ? Number::kFp32 : Number::kBf16;
        const std::vector<float> packed = Input(random_, layer, "n10", 150);
        const std::vector<double> reference = Reference(layer, packed);
        std::vector<int64_t> random_cut;
        for (int i = 0; i < 150; ++i) {
          random_cut.push_back(random_.Below(2) == 0 ? 0 : random_.Below(20));
        }
        for (const std::vector<int64_t>& cut :
             {std::vector<int64_t>{70, 0}, {64, 64}, {1, 63, 1, 0, 40}, random_cut}) {
          ExpectClose(Runner(layer, 1).RunCut(packed, cut), reference, Number::kFp32,
                      absl::StrCat(layer.Name(), ", first cut ", cut[0]));
        }
      }
    }
  }
}

// What came in whole tiles leaves no trace of where it was cut.
TEST_F(CudaConvPrefillTest, CutsBetweenTilesChangeNoBit) {
  for (const int64_t heads : {1, 24}) {
    const Layer layer(random_, 24, heads, 9);
    const std::vector<float> packed = Input(random_, layer, "n10", 200);
    EXPECT_TRUE(SameBits(Runner(layer, 1).RunCut(packed, {64, 128, 8}), Prefill(layer, packed)));
  }
}

TEST_F(CudaConvPrefillTest, StateIsThatOfTheCpuAndEitherGoesOnFromTheOthers) {
  for (const int64_t taps : {1, 2, 9}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      for (const int64_t heads : {3, 24}) {
        Layer layer(random_, 24, heads, taps);
        layer.config.ring = ring;
        const std::vector<float> packed = Input(random_, layer, "n10", 160);
        const std::vector<double> reference = Reference(layer, packed);
        const auto part = [&](int64_t begin, int64_t end) {
          return std::vector<Chunk>{{0, begin, Rows(packed, layer.width(), begin, end)}};
        };
        const auto want = [&](int64_t begin, int64_t end) {
          return std::vector<double>(reference.begin() + begin * 24, reference.begin() + end * 24);
        };
        Runner gpu(layer, 1);
        Runner cpu(layer, 1);
        gpu.Prefill(part(0, 100));
        cpu.OnCpu(part(0, 100));
        const std::vector<float> x = gpu.State(0);
        const std::vector<float> y = cpu.State(0);
        const auto prefix = static_cast<size_t>(24 + 2 * heads);
        for (size_t i = 0; i < prefix; ++i) {
          EXPECT_NEAR(x[i], y[i], 1e-5F * std::max(1.0F, std::abs(y[i]))) << layer.Name();
        }
        EXPECT_TRUE(SameBits({x.begin() + static_cast<int64_t>(prefix), x.end()},
                             {y.begin() + static_cast<int64_t>(prefix), y.end()}))
            << "rings, " << layer.Name();
        ExpectClose(gpu.OnCpu(part(100, 110))[0], want(100, 110), Number::kFp32, layer.Name());
        ExpectClose(cpu.Prefill(part(100, 160))[0], want(100, 160), Number::kFp32, layer.Name());
        ExpectClose(gpu.Prefill(part(110, 160))[0], want(110, 160), Number::kFp32, layer.Name());
      }
    }
  }
}

TEST_F(CudaConvPrefillTest, NeighboursChangeNoBitAndPaddingTouchesNothing) {
  for (const int64_t heads : {3, 24}) {
    const Layer layer(random_, 24, heads, 9);
    const std::vector<int64_t> lengths = {130, 1, 64, 7};
    const std::vector<int32_t> slots = {4, 0, 2, 5};
    std::vector<Chunk> first;
    std::vector<Chunk> second = {{-1, 3, Input(random_, layer, "n1", 70)}};
    std::vector<std::vector<float>> alone_first;
    std::vector<std::vector<float>> alone_second;
    for (size_t i = 0; i < 4; ++i) {
      first.push_back({slots[i], 0, Input(random_, layer, "n10", lengths[i])});
      second.push_back({slots[i], lengths[i], Input(random_, layer, "n10", lengths[3 - i])});
      Runner alone(layer, 1);
      alone_first.push_back(alone.Prefill({{0, 0, first[i].packed}})[0]);
      alone_second.push_back(alone.Prefill({{0, lengths[i], second[i + 1].packed}})[0]);
    }
    Runner together(layer, 7);
    const std::vector<float> before = together.states();
    const std::vector<std::vector<float>> y = together.Prefill(first);
    const std::vector<std::vector<float>> z = together.Prefill(second);
    for (const float zero : z[0]) EXPECT_EQ(zero, 0.0F);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(SameBits(y[i], alone_first[i]));
      EXPECT_TRUE(SameBits(z[i + 1], alone_second[i]));
    }
    const std::vector<float> after = together.states();
    const auto stride = static_cast<int64_t>(before.size()) / 7;
    for (const int64_t slot : {1, 3, 6}) {
      EXPECT_TRUE(
          SameBits(Rows(before, stride, slot, slot + 1), Rows(after, stride, slot, slot + 1)));
    }
  }
}

TEST_F(CudaConvPrefillTest, NanStaysInItsChannelAndHeadAndBehindItsToken) {
  for (const int64_t heads : {1, 3, 24}) {
    const Layer layer(random_, 24, heads, 4);
    const int64_t width = 24 / heads;
    std::vector<float> packed = Input(random_, layer, "n1", 150);
    const std::vector<float> clean = Prefill(layer, packed);
    const auto at = [&](int64_t t, int64_t i) {
      return static_cast<size_t>(t * layer.width() + i);
    };
    packed[at(70, 24)] = std::numeric_limits<float>::quiet_NaN();              // key of head 0
    packed[at(20, 24 + heads + 20)] = std::numeric_limits<float>::infinity();  // channel 20
    packed[at(100, 24 + heads + 10)] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = Prefill(layer, packed);
    for (int64_t t = 0; t < 150; ++t) {
      for (int64_t c = 0; c < 24; ++c) {
        const auto i = static_cast<size_t>(t * 24 + c);
        const bool spoilt = (t >= 70 && c < width) || (t >= 20 && c == 20) || (t >= 100 && c == 10);
        if (spoilt) {
          EXPECT_FALSE(std::isfinite(y[i])) << t << ", " << c;
        } else {
          EXPECT_NEAR(y[i], clean[i], 1e-5) << t << ", " << c;
        }
      }
    }
  }
}

TEST_F(CudaConvPrefillTest, ManyTiles) {
  for (const int64_t heads : {1, 8}) {
    const Layer layer(random_, 8, heads, 9);
    const std::vector<float> packed = Input(random_, layer, "n1", 64 * 19 + 5);
    ExpectClose(Prefill(layer, packed), Reference(layer, packed), Number::kFp32, layer.Name());
  }
}

// The whole product of shapes, taps and lengths.
TEST_F(CudaConvPrefillTest, FullMatrix) {
  if (std::getenv("AFT_CUDA_FULL") == nullptr) GTEST_SKIP() << "AFT_CUDA_FULL is not set";
  for (const int64_t hid : {8, 24, 33, 64, 96, 192}) {
    for (const int64_t heads : {int64_t{1}, int64_t{2}, int64_t{4}, hid / 8, hid}) {
      if (hid % heads != 0) continue;
      for (const int64_t taps : {1, 2, 3, 7, 31, 33}) {
        for (const Storage& storage : kStorages) {
          Layer layer(random_, hid, heads, taps);
          layer.config.ring = random_.Below(2) == 0 ? Number::kFp32 : Number::kBf16;
          for (const int64_t tokens : {1, 2, 31, 63, 64, 65, 131, 200}) {
            const std::vector<float> packed = Input(random_, layer, "n10", tokens, storage.in);
            ExpectClose(Prefill(layer, packed, storage), Reference(layer, packed), storage.out,
                        absl::StrCat(layer.Name(), ", ", storage.Name(), ", ", tokens));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft::conv_test
