// Tests of the attention kernels on a GPU alone: storages, tensor cores, splits, refusals. The
// tests of widths, lengths and blocks in fp32 are in tests/property/attention_test.cc, those of
// what all mixers promise in relations_test.cc.

#include "model/kernels/cuda/attention/attention.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "model/config/formats.h"
#include "tests/cuda/layer.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

std::vector<int64_t> Few(const std::vector<int64_t>& all, const std::vector<int64_t>& few) {
  return Full() ? all : few;
}

class CudaAttentionTest : public testing::Test {
 protected:
  // Runs prompts and steps as `lengths` says (DeviceLayer::Run), and encodes the text
  // bidirectionally.
  void ExpectAll(const MixerCase& shape, int64_t tokens, const std::vector<int64_t>& lengths,
                 Storage storage = {}) {
    DeviceLayer(random_, shape, 1, storage).ExpectRuns(random_, tokens, lengths);
    DeviceLayer(random_, BothWays(shape), 1, storage).ExpectEncodes(random_, tokens);
  }

  TestRandom random_;
};

TEST_F(CudaAttentionTest, EveryWidthWithOutputsInBf16) {
  for (const MixerKind kind : kAttentions) {
    for (const int64_t width : Few({8, 16, 33, 64, 80, 128}, {16, 33, 64, 80})) {
      ExpectAll(Attention(kind, 2, width, 100), 100, {60, 0, 0, 3}, kBf16Storage);
    }
  }
}

// In a step a lane holds at most four groups of four columns, so 516 columns need two blocks.
TEST_F(CudaAttentionTest, StepsOfWideValues) {
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kAdditive}) {
    for (const int64_t width : {132, 516}) {
      DeviceLayer(random_, Attention(kind, 1, width, 40)).ExpectRuns(random_, 40, {33, 0});
    }
  }
}

TEST_F(CudaAttentionTest, LongContextsAreSplitOverBlocks) {
  constexpr int64_t kTokens = 1100;  // 512 keys a split, so three splits
  for (const MixerKind kind : kAttentions) {
    const bool local = kind == MixerKind::kBlockLocal;
    DeviceLayer device(random_, local ? Blocks(1, 4, 600) : Attention(kind, 1, 4, kTokens));
    const Matrix packed = device.Input(random_, kTokens);
    const std::vector<double> all = device.Reference(packed);
    // Only some steps are tested. The CPU's kernel computes the state at all other tokens.
    int64_t done = 0;
    for (const int64_t t : {511, 512, 513, 600, 1023, 1024, 1025, 1099}) {
      if (t > done) device.cpu().Run({device.Chunk(packed, done, t)});
      device.gpu().SetSlotContents(0, device.cpu().SlotContents(0));
      const Matrix y = device.Step({device.Chunk(packed, t, t + 1)})[0];
      const auto row = all.begin() + t * device.hid();
      EXPECT_TRUE(Close(y, std::vector<double>(row, row + device.hid()), tolerance::kFp32))
          << device.Name() << " token " << t;
      device.cpu().SetSlotContents(0, device.State(0));
      done = t + 1;
    }
  }
}

// With many rows one block computes several splits of a row, one after the other.
TEST_F(CudaAttentionTest, SplitsAreTheSameBitsInALargeBatch) {
  constexpr int64_t kTokens = 1100;
  DeviceLayer device(random_, Attention(MixerKind::kDotProduct, 1, 4, kTokens));
  const Matrix packed = device.Input(random_, kTokens);
  device.cpu().Run({device.Chunk(packed, 0, kTokens - 1)});
  const Matrix before = device.cpu().SlotContents(0);
  device.gpu().SetSlotContents(0, before);
  std::vector<MixerChunk> chunks = {device.Chunk(packed, kTokens - 1, kTokens)};
  const Matrix alone = device.Step(chunks)[0];
  const Matrix after = device.State(0);
  device.gpu().SetSlotContents(0, before);
  chunks.insert(chunks.begin(), 1600, {-1, 5, chunks[0].packed});
  EXPECT_TRUE(SameBits(device.Step(chunks).back(), alone));
  EXPECT_TRUE(SameBits(device.State(0), after));
}

// If a tile is NaN, the kernel computes it again in scalar code, which would hide the fault. A NaN
// in the last query of each tile does this on purpose. It changes the rounding of the other tokens,
// which shows that their results came from tensor cores without it.
TEST_F(CudaAttentionTest, FiniteTilesComeFromTensorCores) {
  constexpr int64_t kTokens = 200;
  const std::vector<int64_t> ends = {63, 69, 127, 134, 191, 199};  // of chunks and tiles
  std::vector<int64_t> widths = {16, 64};
#ifdef AFT_CUDA_ON_CPU
  widths.push_back(128);  // scalar code on a GPU whose blocks have 99 KiB
#endif
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kBlockLocal}) {
    for (const int64_t width : widths) {
      DeviceLayer device(random_, Attention(kind, 1, width, kTokens));
      const Matrix packed = device.Input(random_, kTokens);
      Matrix spoilt = packed;
      for (const int64_t t : ends) {
        spoilt[static_cast<size_t>(t * device.packed_width())] =
            std::numeric_limits<float>::quiet_NaN();
      }
      const Matrix y = device.Run(packed, {70, 65});
      const Matrix scalar = device.Run(spoilt, {70, 65});
      for (int64_t t = 8; t < kTokens; ++t) {
        const Matrix row = Rows(y, width, t, t + 1);
        ASSERT_FALSE(SameBits(row, Rows(scalar, width, t, t + 1)))
            << device.Name() << " token " << t;
      }
    }
  }
}

// One round of the search for a tile's row has 32 probes, so 75 rows need two. Some are empty.
TEST_F(CudaAttentionTest, ManyShortRowsFindTheirTiles) {
  constexpr int64_t kRows = 75;
  for (const MixerKind kind : {MixerKind::kDotProduct, MixerKind::kLocation}) {
    DeviceLayer device(random_, Attention(kind, 1, 4, 110), kRows);
    std::vector<Matrix> texts;
    std::vector<MixerChunk> chunks;
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
  const auto refused = [&](Number type, Number out_type) {
    const kernels::cuda::In in = {nullptr, type, 13};
    const kernels::cuda::Out out = {nullptr, out_type, 4};
    EXPECT_NE(kernels::cuda::AttentionStep(params, {}, in, {}, out, nullptr, nullptr), 0);
    EXPECT_NE(kernels::cuda::AttentionPrefill(params, {}, in, {}, out, nullptr, nullptr), 0);
    if (params.causal) {
      EXPECT_NE(kernels::cuda::AttentionEncode(params, {}, in, out, nullptr, nullptr), 0);
    }
  };
  for (const FormatSpec& type : kFormats) {
    if (type.format != Number::kFp32) refused(type.format, type.format);
    if (IsQuantized(type.format)) refused(Number::kFp32, type.format);
  }
  params.block_size = 16;
  refused(Number::kFp32, Number::kFp32);
  params.block_size = 0;
  params.causal = false;
  refused(Number::kFp32, Number::kFp32);
}

// Heads are a dimension of the grid. Error 1 is an invalid value; 9, which a launch would return,
// stands for shared memory in KernelStatus.
TEST_F(CudaAttentionTest, RefusesMoreHeadsThanAGridHas) {
  const kernels::AttentionParams params = {
      .heads = kernels::cuda::kMaxRows + 1, .score_width = 1, .value_width = 1, .causal = false};
  const kernels::cuda::In in = {nullptr, Number::kFp32, 3 * params.heads};
  const kernels::cuda::Out out = {nullptr, Number::kFp32, params.heads};
  EXPECT_EQ(kernels::cuda::AttentionEncode(params, {}, in, out, nullptr, nullptr), 1);
}

}  // namespace
}  // namespace aft
