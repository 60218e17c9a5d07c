// ConvStep against float64 and against the CPU's kernel.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cuda/conv_harness.h"

namespace aft::conv_test {
namespace {

// By Step alone, token by token.
std::vector<float> Decode(const Layer& layer, const std::vector<float>& packed,
                          Storage storage = {}) {
  return Runner(layer, 1, storage).RunCut(packed, {0});
}

class CudaConvStepTest : public testing::Test {
 protected:
  TestRandom random_;
};

TEST_F(CudaConvStepTest, EqualsItsDefinitionInEveryShape) {
  for (const int64_t hid : {8, 24, 33, 64, 192}) {
    for (const int64_t heads : {int64_t{1}, int64_t{2}, int64_t{3}, hid / 8, hid}) {
      if (hid % heads != 0) continue;
      for (const int64_t taps : {1, 7}) {
        Layer layer(random_, hid, heads, taps);
        layer.config.ring = taps == 7 && heads != 2 ? Number::kBf16 : Number::kFp32;
        const std::vector<float> packed = Input(random_, layer, "n1", taps + 3);
        ExpectClose(Decode(layer, packed), Reference(layer, packed), Number::kFp32, layer.Name());
      }
    }
  }
}

TEST_F(CudaConvStepTest, EqualsItsDefinitionWithEveryNumberOfTaps) {
  for (const int64_t taps : {1, 2, 3, 31, 33, 70}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      Layer layer(random_, 16, 4, taps);
      layer.config.ring = ring;
      const std::vector<float> packed = Input(random_, layer, "n1", 75);
      ExpectClose(Decode(layer, packed), Reference(layer, packed), Number::kFp32, layer.Name());
    }
  }
}

TEST_F(CudaConvStepTest, ExtremeKeysAndFiltersStayExact) {
  for (const std::string& keys : kKeySets) {
    for (const double spread : {0.1, 5.0, 20.0, 200.0}) {
      const Layer layer(random_, 12, 6, 5, spread);
      const std::vector<float> packed = Input(random_, layer, keys, 40);
      ExpectClose(Decode(layer, packed), Reference(layer, packed), Number::kFp32,
                  absl::StrCat(keys, ", ", layer.Name()), spread > 100 ? 10 : 1);
    }
  }
}

TEST_F(CudaConvStepTest, EveryStorage) {
  for (const Storage& storage : kStorages) {
    for (const int64_t heads : {1, 3, 8, 24}) {
      for (const Number ring : {Number::kFp32, Number::kBf16}) {
        Layer layer(random_, 24, heads, 4);
        layer.config.ring = ring;
        const std::vector<float> packed = Input(random_, layer, "n1", 12, storage.in);
        ExpectClose(Decode(layer, packed, storage), Reference(layer, packed), storage.out,
                    absl::StrCat(layer.Name(), ", ", storage.Name()));
      }
    }
  }
}

// Heads wider than all lanes of a block together, and more heads than a block has threads.
TEST_F(CudaConvStepTest, WideBlocks) {
  for (const int64_t heads : {1, 600}) {
    for (const int64_t taps : {2, 40}) {
      const Layer layer(random_, 1200, heads, taps);
      const std::vector<float> packed = Input(random_, layer, "n1", 3);
      ExpectClose(Decode(layer, packed), Reference(layer, packed), Number::kFp32, layer.Name());
    }
  }
}

TEST_F(CudaConvStepTest, StateIsThatOfTheCpu) {
  for (const int64_t taps : {1, 2, 5}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      Layer layer(random_, 24, 3, taps);
      layer.config.ring = ring;
      const std::vector<float> packed = Input(random_, layer, "n10", 14);
      Runner gpu(layer, 1);
      Runner cpu(layer, 1);
      for (int64_t t = 0; t < 14; ++t) {
        const std::vector<Chunk> one = {{0, t, Rows(packed, layer.width(), t, t + 1)}};
        const std::vector<float> a = gpu.Step(one)[0];
        const std::vector<float> b = cpu.OnCpu(one)[0];
        for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5) << layer.Name();
        const std::vector<float> x = gpu.State(0);
        const std::vector<float> y = cpu.State(0);
        const auto prefix = static_cast<size_t>(24 + 2 * 3);
        for (size_t i = 0; i < prefix; ++i) {
          EXPECT_NEAR(x[i], y[i], 1e-5F * std::max(1.0F, std::abs(y[i]))) << layer.Name();
        }
        EXPECT_TRUE(SameBits({x.begin() + static_cast<int64_t>(prefix), x.end()},
                             {y.begin() + static_cast<int64_t>(prefix), y.end()}))
            << "rings, " << layer.Name();
      }
    }
  }
}

TEST_F(CudaConvStepTest, SlotsMayBePermutedAndPaddingTouchesNothing) {
  const Layer layer(random_, 24, 3, 4);
  constexpr int64_t kTokens = 9;
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(Input(random_, layer, "n10", kTokens));
    alone.push_back(Decode(layer, inputs.back()));
  }
  Runner together(layer, 5);
  const std::vector<float> before = together.states();
  const std::vector<int32_t> slots = {4, 0, 2};
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<Chunk> chunks = {{-1, t, Input(random_, layer, "n1", 1)}};
    for (size_t i = 0; i < 3; ++i) {
      chunks.push_back({slots[i], t, Rows(inputs[i], layer.width(), t, t + 1)});
    }
    const std::vector<std::vector<float>> y = together.Step(chunks);
    for (const float zero : y[0]) EXPECT_EQ(zero, 0.0F);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(SameBits(y[i + 1], Rows(alone[i], layer.hid, t, t + 1)));
    }
  }
  const std::vector<float> after = together.states();
  const auto stride = static_cast<int64_t>(before.size()) / 5;
  for (const int64_t slot : {1, 3}) {
    EXPECT_TRUE(
        SameBits(Rows(before, stride, slot, slot + 1), Rows(after, stride, slot, slot + 1)));
  }
}

TEST_F(CudaConvStepTest, NanStaysInItsChannelAndHead) {
  const Layer layer(random_, 24, 3, 4);
  std::vector<float> packed = Input(random_, layer, "n1", 12);
  const std::vector<float> clean = Decode(layer, packed);
  const auto at = [&](int64_t t, int64_t i) { return static_cast<size_t>(t * layer.width() + i); };
  packed[at(3, 24)] = std::numeric_limits<float>::quiet_NaN();          // key of head 0
  packed[at(2, 24 + 3 + 20)] = std::numeric_limits<float>::infinity();  // value of channel 20
  const std::vector<float> y = Decode(layer, packed);
  for (int64_t t = 0; t < 12; ++t) {
    for (int64_t c = 0; c < 24; ++c) {
      const auto i = static_cast<size_t>(t * 24 + c);
      const bool spoilt = (t >= 3 && c < 8) || (t >= 2 && c == 20);
      if (spoilt) {
        EXPECT_FALSE(std::isfinite(y[i])) << t << ", " << c;
      } else {
        EXPECT_EQ(y[i], clean[i]) << t << ", " << c;
      }
    }
  }
}

TEST_F(CudaConvStepTest, RefusesWhatItCannotDo) {
  const Layer layer(random_, 8, 2, 3);
  const DeviceArray<float> filter(layer.Filter());
  const kernels::cuda::ConvModel good = layer.Model(filter);
  const DeviceArray<float> memory(64);
  const auto run = [&](const kernels::cuda::ConvModel& model, Number in, Number out) {
    return kernels::cuda::ConvStep(model, {}, {memory.get(), in, 18}, {memory.get(), 64},
                                   {memory.get(), out, 8}, nullptr);
  };
  EXPECT_EQ(run(good, Number::kFp32, Number::kFp32), 0);
  EXPECT_NE(run(good, Number::kFp16, Number::kFp16), 0);
  EXPECT_NE(run(good, Number::kBf16, Number::kFp32), 0);
  kernels::cuda::ConvModel model = good;
  model.heads = 3;
  EXPECT_NE(run(model, Number::kFp32, Number::kFp32), 0);
  model = good;
  model.causal = false;
  EXPECT_NE(run(model, Number::kFp32, Number::kFp32), 0);
}

}  // namespace
}  // namespace aft::conv_test
