// Tests of the AFT kernels on a GPU alone: storages, batches of many rows, refusals. The tests of
// windows, lengths, widths and biases in fp32 are in tests/property/aft_test.cc, those of what all
// mixers promise in relations_test.cc.

#include "model/kernels/cuda/aft/aft.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/config/formats.h"
#include "tests/cuda/layer.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

class CudaAftTest : public testing::Test {
 protected:
  // Runs a text as one prompt, another one as steps, and encodes a third. Without restarts it also
  // encodes one bidirectionally.
  void ExpectAll(const MixerCase& shape, int64_t tokens, const std::string& keys = "n1",
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

TEST_F(CudaAftTest, EveryWindowAndWidthWithOutputsInBf16) {
  for (const int64_t window : {0, 1, 2, 31, 32, 33, 65, 200}) {
    ExpectAll(Aft(8, {.window = window}), 131, "n1", kBf16Storage);
  }
  for (const int64_t hid : {1, 33, 64, 100, 512}) {
    ExpectAll(Aft(hid, {.window = 17}), 70, "n1", kBf16Storage);
  }
  ExpectAll(Aft(8, {.window = 33}, 60), 140, "spike", kBf16Storage);
  ExpectAll(Aft(8, {.window = 140, .band_rows = 140}), 140, "n10", kBf16Storage);
  ExpectAll(Aft(8, {.window = 20, .prefix_block = 64}), 220, "n1", kBf16Storage);
}

TEST_F(CudaAftTest, StepsHaveEveryStorage) {
  for (const Storage& storage : kStorages) {
    for (const int64_t hid : {33, 36, 64}) {
      const MixerCase shape = Aft(hid, {.window = 12});
      for (const MixerCase& ring : {shape, WithBf16Ring(shape)}) {
        DeviceLayer(random_, ring, 1, storage).ExpectRuns(random_, 25, {0});
      }
      DeviceLayer(random_, Aft(hid, {}), 1, storage).ExpectRuns(random_, 9, {0});
    }
  }
}

// With this many rows, one thread or block goes through a whole row. A row alone has its tiles
// processed in parallel. Both must give the same bits.
TEST_F(CudaAftTest, WholeRowsGiveTheSameBitsAsParallelTiles) {
  struct Case {
    MixerCase shape;
    int32_t rows;
    int64_t tokens;
    Storage storage;
    int64_t parts;
  };
  for (const Case& c : {Case{Aft(4, {.window = 20}), 192, 66, {}, 2},
                        Case{Aft(4, {.window = 20}), 192, 66, kBf16Storage, 1},
                        Case{Aft(1024, {}), 65, 65, kBf16Storage, 1}}) {
    DeviceLayer layer(random_, c.shape, 2 * c.rows, c.storage);  // slot rows + i: row i alone
    SCOPED_TRACE(layer.Name());
    for (int64_t part = 0; part < c.parts; ++part) {
      const Matrix packed = layer.Input(random_, c.tokens, "n10");
      std::vector<MixerChunk> chunks;
      for (int32_t i = 0; i < c.rows; ++i) chunks.push_back({i, part * c.tokens, packed});
      chunks[1].position = 0;  // slot 1 starts another text in every part
      const std::vector<Matrix> y = layer.Prefill(chunks);
      for (const int32_t i : {0, 1, c.rows - 1}) {
        MixerChunk alone = chunks[static_cast<size_t>(i)];
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
  // Calls without rows have nothing to do, unless they are refused.
  const auto step = [&](const cuda::AftModel& model, Number in, Number out) {
    return cuda::AftStep(model, {}, {memory.get(), in, 24}, {}, {}, {memory.get(), out, 8},
                         nullptr);
  };
  const auto prefill = [&](const cuda::AftModel& model, Number in, Number out) {
    return cuda::AftPrefill(model, {}, {memory.get(), in, 24}, {}, {memory.get(), out, 8}, nullptr,
                            nullptr);
  };
  const auto encode = [&](const cuda::AftModel& model, Number in, Number out) {
    return cuda::AftEncode(model, {}, {memory.get(), in, 24}, {memory.get(), out, 8}, nullptr,
                           nullptr);
  };
  for (const int64_t window : {0, 3}) {
    const cuda::AftModel model = {.hid = 8, .window = window, .bias = memory.get()};
    for (const FormatSpec& in : kFormats) {
      for (const FormatSpec& out : kFormats) {
        const bool refused = in.format != Number::kFp32 || IsQuantized(out.format);
        EXPECT_EQ(step(model, in.format, out.format) != 0, refused);
        EXPECT_EQ(prefill(model, in.format, out.format) != 0, refused);
        EXPECT_EQ(encode(model, in.format, out.format) != 0, refused);
      }
    }
  }
  const Number fp32 = Number::kFp32;
  EXPECT_NE(step({.hid = 8, .causal = false}, fp32, fp32), 0);
  EXPECT_NE(prefill({.hid = 8, .causal = false}, fp32, fp32), 0);
  EXPECT_NE(encode({.hid = 8, .prefix_block = 4, .causal = false}, fp32, fp32), 0);
}

// Tests all combinations of windows, blocks and lengths, each with two of the widths in turn.
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
          const MixerCase shape = Aft(hid, {.window = window, .prefix_block = block}, spread);
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
