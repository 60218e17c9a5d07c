// What the AFT kernel promises bit for bit, on every instruction set of this machine.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/property/aft_harness.h"
#include "tests/property/random_inputs.h"

namespace aft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class AftExactnessTest : public EveryInstructionSet {
 protected:
  // Layers of every kind of window, block and ring.
  std::vector<AftLayer> Layers(int64_t hid) {
    std::vector<AftLayer> layers;
    for (const int64_t window : {0, 1, 2, 31, 32, 33, 120}) {
      for (const int64_t block : {int64_t{0}, std::max<int64_t>(window, 1), int64_t{64}}) {
        if (block != 0 && block < window) continue;
        for (const double w : {1.0, 20.0}) {
          layers.push_back({hid, window, block, 1, random_.Normals(window, w)});
        }
        layers.push_back({hid, window, block, 1, random_.Normals(window), kernels::AftRing::kBf16});
      }
    }
    return layers;
  }

  std::string Name(const AftLayer& layer) {
    return testing::PrintToString(std::tuple(layer.window, layer.prefix_block, layer.hid));
  }

  TestRandom random_;
};

TEST_P(AftExactnessTest, CuttingASequenceAnywhereChangesNoBit) {
  constexpr int64_t kTokens = 100;
  size_t keys = 0;
  for (const AftLayer& layer : Layers(37)) {
    const std::vector<float> qkv =
        RandomQkv(random_, kKeySets[keys++ % kKeySets.size()], kTokens, layer.hid);
    const std::vector<float> whole = AftRunner(layer, 1).RunCut(qkv, {kTokens});
    EXPECT_TRUE(SameBits(AftRunner(layer, 1).RunCut(qkv, {1}), whole)) << Name(layer);
    for (int64_t cut = 1; cut < kTokens; ++cut) {
      ASSERT_TRUE(SameBits(AftRunner(layer, 1).RunCut(qkv, {cut, kTokens}), whole))
          << Name(layer) << " cut at " << cut;
    }
    std::vector<int64_t> lengths(kTokens);
    for (int64_t& length : lengths) length = 1 + random_.Below(12);
    EXPECT_TRUE(SameBits(AftRunner(layer, 1).RunCut(qkv, lengths), whole)) << Name(layer);
  }
}

TEST_P(AftExactnessTest, ALaterTokenChangesNoEarlierOutput) {
  constexpr int64_t kTokens = 80;
  for (const AftLayer& layer : Layers(17)) {
    const std::vector<float> qkv = RandomQkv(random_, "n1", kTokens, layer.hid);
    const std::vector<float> y = AftRunner(layer, 1).RunCut(qkv, {kTokens});
    const int64_t changed = 1 + random_.Below(kTokens - 1);
    std::vector<float> other = qkv;
    for (int64_t i = 0; i < 3 * layer.hid; ++i) {
      other[static_cast<size_t>(changed * 3 * layer.hid + i)] = 1e4F;
    }
    const std::vector<float> y2 = AftRunner(layer, 1).RunCut(other, {kTokens});
    EXPECT_TRUE(SameBits(Tokens(y, layer.hid, 0, changed), Tokens(y2, layer.hid, 0, changed)));
    EXPECT_FALSE(SameBits(y, y2));
  }
}

TEST_P(AftExactnessTest, BatchNeighboursChangeNoBit) {
  constexpr int64_t kSequences = 6;
  constexpr int64_t kTokens = 90;
  for (const AftLayer& layer : Layers(33)) {
    const int64_t width = 3 * layer.hid;
    std::vector<std::vector<float>> inputs;
    std::vector<std::vector<float>> outputs(kSequences);
    for (int64_t i = 0; i < kSequences; ++i) {
      inputs.push_back(RandomQkv(random_, "n10", kTokens, layer.hid));
    }
    std::vector<int32_t> slots(kSequences);
    std::iota(slots.begin(), slots.end(), 0);
    for (int64_t i = kSequences; i > 1; --i) {
      std::swap(slots[static_cast<size_t>(i - 1)], slots[static_cast<size_t>(random_.Below(i))]);
    }
    std::vector<int64_t> positions(kSequences, 0);
    AftRunner together(layer, kSequences);
    while (*std::min_element(positions.begin(), positions.end()) < kTokens) {
      std::vector<Chunk> chunks;
      std::vector<size_t> sequences;
      for (size_t i = 0; i < kSequences; ++i) {
        if (positions[i] == kTokens || random_.Below(3) == 0) continue;
        const int64_t end =
            std::min(kTokens, positions[i] + (random_.Below(2) == 0 ? 1 : 1 + random_.Below(20)));
        chunks.push_back({slots[i], positions[i], Tokens(inputs[i], width, positions[i], end)});
        sequences.push_back(i);
        positions[i] = end;
      }
      chunks.push_back({-1, 5, random_.Normals(2 * width)});
      const std::vector<std::vector<float>> parts = together.Run(chunks);
      for (size_t j = 0; j < sequences.size(); ++j) {
        std::vector<float>& output = outputs[sequences[j]];
        output.insert(output.end(), parts[j].begin(), parts[j].end());
      }
    }
    for (size_t i = 0; i < kSequences; ++i) {
      EXPECT_TRUE(SameBits(outputs[i], AftRunner(layer, 1).RunCut(inputs[i], {kTokens})))
          << Name(layer);
    }
  }
}

TEST_P(AftExactnessTest, AReusedSlotKeepsNoTrace) {
  for (const AftLayer& layer : Layers(20)) {
    const std::vector<float> first = RandomQkv(random_, "const+1e4", 130, layer.hid);
    const std::vector<float> second = RandomQkv(random_, "n1", 70, layer.hid);
    const std::vector<float> fresh = AftRunner(layer, 1).RunCut(second, {9, 1});
    AftRunner used(layer, 1);
    used.RunCut(first, {130});
    EXPECT_TRUE(SameBits(used.RunCut(second, {9, 1}), fresh)) << Name(layer);
  }
}

TEST_P(AftExactnessTest, PaddingWritesZerosAndTouchesNoState) {
  for (const AftLayer& layer : Layers(33)) {
    AftRunner runner(layer, 2);
    const std::vector<float> before = runner.states();
    const std::vector<float> y = runner.Run({{-1, 3, random_.Normals(9 * 3 * layer.hid)}})[0];
    EXPECT_TRUE(SameBits(y, std::vector<float>(y.size(), 0.0F)));
    EXPECT_TRUE(SameBits(runner.states(), before));
  }
}

TEST_P(AftExactnessTest, OtherSlotsAreNotTouched) {
  for (const AftLayer& layer : Layers(33)) {
    AftRunner runner(layer, 3);
    const std::vector<float> before = runner.states();
    runner.Run({{1, 0, RandomQkv(random_, "n1", 140, layer.hid)}});
    const int64_t slot = layer.slot_floats();
    for (const int64_t other : {0, 2}) {
      EXPECT_TRUE(SameBits(Tokens(runner.states(), slot, other, other + 1),
                           Tokens(before, slot, other, other + 1)));
    }
  }
}

TEST_P(AftExactnessTest, ANanStaysInItsSequenceAndChannel) {
  constexpr int64_t kTokens = 60;
  constexpr int64_t kHid = 37;
  for (const int64_t window : {0, 1, 32}) {
    const AftLayer layer = {kHid, window, 0, 1, random_.Normals(window)};
    const std::vector<float> clean = RandomQkv(random_, "n1", kTokens, kHid);
    const std::vector<float> y = AftRunner(layer, 1).RunCut(clean, {kTokens});
    // Wherever the token falls in the kernel's groups of tokens.
    for (int64_t token = 10; token < 24; ++token) {
      const int64_t part = token % 3;
      const int64_t channel = random_.Below(kHid);
      std::vector<float> dirty = clean;
      dirty[static_cast<size_t>((token * 3 + part) * kHid + channel)] = kNan;
      const std::vector<std::vector<float>> outputs =
          AftRunner(layer, 2).Run({{0, 0, dirty}, {1, 0, clean}});
      EXPECT_TRUE(SameBits(outputs[1], y));
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t c = 0; c < kHid; ++c) {
          const auto i = static_cast<size_t>(t * kHid + c);
          if (c == channel && t >= token) continue;
          EXPECT_EQ(outputs[0][i], y[i]);
        }
      }
      EXPECT_TRUE(std::isnan(outputs[0][static_cast<size_t>(token * kHid + channel)]));
    }
  }
}

TEST_P(AftExactnessTest, AChannelDoesNotDependOnTheWidth) {
  constexpr int64_t kTokens = 50;
  constexpr int64_t kHid = 100;
  const AftLayer layer = {kHid, 32, 0, 1, random_.Normals(32)};
  const std::vector<float> qkv = RandomQkv(random_, "n10", kTokens, kHid);
  const std::vector<float> y = AftRunner(layer, 1).RunCut(qkv, {kTokens});
  AftLayer narrow = layer;
  narrow.hid = 1;
  for (int64_t c = 0; c < kHid; ++c) {
    std::vector<float> channel;
    for (int64_t i = 0; i < 3 * kTokens; ++i) {
      channel.push_back(qkv[static_cast<size_t>(i * kHid + c)]);
    }
    const std::vector<float> alone = AftRunner(narrow, 1).RunCut(channel, {kTokens});
    for (int64_t t = 0; t < kTokens; ++t) {
      ASSERT_EQ(alone[static_cast<size_t>(t)], y[static_cast<size_t>(t * kHid + c)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, AftExactnessTest, testing::ValuesIn(InstructionSets()),
                         InstructionSetName);

}  // namespace
}  // namespace aft
