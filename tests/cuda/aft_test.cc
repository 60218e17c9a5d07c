// The AFT kernels against the formula in float64 and the CPU's kernel: every shape that decides
// which kernel runs and how it cuts its work. What all mixers promise is in relations_test.cc.

#include "model/kernels/cuda/aft/aft.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda/layer.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

class CudaAftTest : public testing::Test {
 protected:
  // A prompt, then steps; the steps alone; and, where there is no restart, the text both ways.
  void ExpectAll(const LayerShape& shape, int64_t tokens, const std::string& keys = "n1",
                 Storage storage = {}) {
    DeviceLayer layer(random_, shape, 1, storage);
    layer.ExpectRuns(random_, tokens, {tokens}, keys);
    layer.ExpectRuns(random_, std::min<int64_t>(tokens, shape.config.window + 20), {0}, keys);
    layer.ExpectEncodes(random_, tokens, keys);
    if (shape.config.prefix_block > 0) return;
    DeviceLayer(random_, BothWays(shape), 1, storage).ExpectEncodes(random_, tokens, keys);
  }

  TestRandom random_;
};

TEST_F(CudaAftTest, EveryWindow) {
  for (const int64_t window : {0, 1, 2, 7, 31, 32, 33, 65, 100, 200}) {
    const LayerShape shape = Aft(8, {.window = window});
    ExpectAll(shape, 131);
    ExpectAll(shape, 131, "n1", kBf16Storage);
    ExpectAll(WithBf16Ring(shape), 131, "n10");
  }
}

TEST_F(CudaAftTest, EveryLength) {
  for (const int64_t window : {0, 1, 32, 65}) {
    for (const int64_t tokens :
         {int64_t{1}, int64_t{2}, window - 1, window, window + 1, int64_t{63}, int64_t{64},
          int64_t{65}, int64_t{131}, int64_t{300}}) {
      if (tokens >= 1) ExpectAll(Aft(8, {.window = window}), tokens);
    }
  }
}

TEST_F(CudaAftTest, EveryWidth) {
  for (const int64_t hid : {1, 2, 8, 33, 64, 100, 192, 512}) {
    for (const int64_t window : {0, 17}) {
      ExpectAll(Aft(hid, {.window = window}), 70);
      ExpectAll(Aft(hid, {.window = window}), 70, "n1", kBf16Storage);
    }
  }
}

TEST_F(CudaAftTest, StepsHaveEveryPairOfStorages) {
  for (const Number in : {Number::kFp32, Number::kBf16}) {
    for (const Number out : {Number::kFp32, Number::kBf16, Number::kFp16}) {
      for (const int64_t hid : {33, 36, 64}) {
        const LayerShape shape = Aft(hid, {.window = 12});
        for (const LayerShape& ring : {shape, WithBf16Ring(shape)}) {
          const bool padded = random_.Below(2) == 0;
          DeviceLayer(random_, ring, 1, {in, out, padded}).ExpectRuns(random_, 25, {0});
        }
        DeviceLayer(random_, Aft(hid, {}), 1, {in, out, true}).ExpectRuns(random_, 9, {0});
      }
    }
  }
}

TEST_F(CudaAftTest, WideBiases) {
  for (const double spread : {0.1, 5.0, 20.0, 60.0}) {
    for (const std::string keys : {"n1", "u100", "spike"}) {
      for (const int64_t window : {2, 33, 100}) {
        ExpectAll(Aft(8, {.window = window}, spread), 140, keys);
      }
      ExpectAll(Aft(8, {.window = 33}, spread), 140, keys, kBf16Storage);
    }
  }
}

TEST_F(CudaAftTest, BiasesByPositionEndWithTheLastRow) {
  for (const int64_t window : {1, 7, 33}) {
    ExpectAll(Aft(8, {.window = window, .band_rows = 25}), 60);
  }
  ExpectAll(Aft(8, {.window = 20, .band_rows = 100}), 140);
  const LayerShape full = Aft(8, {.window = 140, .band_rows = 140});
  ExpectAll(full, 140, "n10");
  ExpectAll(full, 140, "n10", kBf16Storage);
}

TEST_F(CudaAftTest, PrefixRestartAddsEveryTokenOnce) {
  for (const int64_t window : {0, 1, 7, 20}) {
    for (const int64_t block :
         {std::max<int64_t>(window, 1), window + 5, int64_t{64}, int64_t{100}}) {
      const LayerShape shape = Aft(9, {.window = window, .prefix_block = block});
      for (const LayerShape& ring : {shape, WithBf16Ring(shape)}) {
        DeviceLayer layer(random_, ring);
        layer.ExpectRuns(random_, std::min<int64_t>(4 * block + 9, 80), {0});
        layer.ExpectRuns(random_, 220, {220});
      }
    }
  }
  DeviceLayer(random_, Aft(8, {.window = 20, .prefix_block = 64}), 1, kBf16Storage)
      .ExpectRuns(random_, 220, {70, 0});
}

// Enough rows that each is walked through by one thread or one block, where a row by itself has
// its tiles worked on at once.
TEST_F(CudaAftTest, WalkingGivesTheBitsOfTiles) {
  struct Case {
    LayerShape shape;
    int32_t rows;
    int64_t tokens;
    Storage storage;
    int64_t parts;
  };
  for (const Case& c : {Case{Aft(4, {.window = 20}), 192, 66, {}, 2},
                        Case{Aft(4, {.window = 20}), 192, 66, kBf16Storage, 1},
                        Case{Aft(1024, {}), 65, 65, kBf16Storage, 1}}) {
    DeviceLayer layer(random_, c.shape, 2 * c.rows, c.storage);  // alone: slots from `rows` on
    SCOPED_TRACE(layer.Name());
    for (int64_t part = 0; part < c.parts; ++part) {
      const Matrix packed = layer.Input(random_, c.tokens, "n10");
      std::vector<LayerChunk> chunks;
      for (int32_t i = 0; i < c.rows; ++i) chunks.push_back({i, part * c.tokens, packed});
      chunks[1].position = 0;  // and another text in this one
      const std::vector<Matrix> y = layer.Prefill(chunks);
      for (const int32_t i : {0, 1, c.rows - 1}) {
        LayerChunk alone = chunks[static_cast<size_t>(i)];
        alone.slot += c.rows;
        EXPECT_TRUE(SameBits(y[static_cast<size_t>(i)], layer.Prefill({alone})[0])) << "row " << i;
        EXPECT_TRUE(SameBits(layer.State(i), layer.State(alone.slot))) << "row " << i;
      }
    }
  }
}

TEST_F(CudaAftTest, RefusesWhatItHasNoKernelFor) {
  namespace cuda = kernels::cuda;
  const DeviceArray<float> memory(64);
  const cuda::Out out = {memory.get(), Number::kFp32, 8};
  const auto prefill = [&](const cuda::AftModel& model, Number in) {
    return cuda::AftPrefill(model, {}, {memory.get(), in, 24}, {}, out, nullptr, nullptr);
  };
  EXPECT_EQ(prefill({.hid = 8}, Number::kFp32), 0);  // no rows: nothing to do
  EXPECT_NE(prefill({.hid = 8}, Number::kBf16), 0);
  EXPECT_NE(prefill({.hid = 8}, Number::kFp16), 0);
  EXPECT_NE(prefill({.hid = 8, .causal = false}, Number::kFp32), 0);
  EXPECT_NE(cuda::AftEncode({.hid = 8, .prefix_block = 4, .causal = false}, {},
                            {memory.get(), Number::kFp32, 24}, out, nullptr, nullptr),
            0);
  EXPECT_EQ(cuda::AftStep({.hid = 8}, {}, {}, {}, {}, {}, nullptr), 0);
  EXPECT_NE(cuda::AftStep({.hid = 8, .causal = false}, {}, {}, {}, {}, {}, nullptr), 0);
}

// Of windows, blocks and lengths, each with two of the widths in turn.
TEST_F(CudaAftTest, TheWholeMatrix) {
  if (!Full()) GTEST_SKIP() << "AFT_CUDA_FULL is not set";
  const std::vector<int64_t> widths = {1, 8, 33, 64, 100, 192, 512};
  size_t next = 0;
  for (const int64_t window : {0, 1, 2, 7, 31, 32, 33, 65, 100, 200, 400}) {
    for (const int64_t block : {0, 64, 128, 100}) {
      if (block > 0 && block < window) continue;
      for (const int64_t tokens :
           {int64_t{1}, int64_t{2}, window - 1, window, window + 1, int64_t{63}, int64_t{64},
            int64_t{65}, int64_t{131}, int64_t{300}}) {
        if (tokens < 1) continue;
        for (int i = 0; i < 2; ++i) {
          const int64_t hid = widths[next++ % widths.size()];
          const double spread = std::vector<double>{0.1, 1.0, 5.0, 20.0}[random_.Below(4)];
          const LayerShape shape = Aft(hid, {.window = window, .prefix_block = block}, spread);
          ExpectAll(random_.Below(2) == 0 ? WithBf16Ring(shape) : shape, tokens,
                    kKeySets[static_cast<size_t>(random_.Below(10))],
                    random_.Below(2) == 0 ? kBf16Storage : Storage{});
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft
