// What the attention kernels promise bit for bit, on every instruction set of this machine.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/property/aft_harness.h"
#include "tests/property/attention_harness.h"

namespace aft {
namespace {

constexpr int64_t kCapacity = 150;

class AttentionExactnessTest : public EveryInstructionSet {
 protected:
  // One layer of every kind, and of block-local several.
  std::vector<AttentionLayer*> Layers(int64_t heads, int64_t width) {
    layers_.clear();
    for (const AttentionKind kind : kAttentionKinds) Add(kind, heads, width);
    for (const int64_t block : {1, 7, 32, 48}) {
      Add(AttentionKind::kBlockLocal, heads, width).params.block_size = block;
    }
    Add(AttentionKind::kBlockLocal, heads, width).params.global_token = false;
    Add(AttentionKind::kBlockLocal, heads, width).params.full_decode = true;
    std::vector<AttentionLayer*> layers;
    for (const auto& layer : layers_) layers.push_back(layer.get());
    return layers;
  }

  std::vector<float> RandomPacked(const AttentionLayer& layer, int64_t tokens) {
    return random_.Normals(tokens * layer.packed_width(), 2);
  }

  TestRandom random_;

 private:
  AttentionLayer& Add(AttentionKind kind, int64_t heads, int64_t width) {
    layers_.push_back(std::make_unique<AttentionLayer>(kind, heads, width, kCapacity, random_));
    return *layers_.back();
  }

  std::vector<std::unique_ptr<AttentionLayer>> layers_;
};

TEST_P(AttentionExactnessTest, CuttingASequenceAnywhereChangesNoBit) {
  constexpr int64_t kTokens = 140;
  for (const AttentionLayer* layer : Layers(1, 21)) {
    const std::vector<float> packed = RandomPacked(*layer, kTokens);
    const std::vector<float> whole = AttentionRunner(*layer, 1).RunCut(packed, {kTokens});
    EXPECT_TRUE(SameBits(AttentionRunner(*layer, 1).RunCut(packed, {1}), whole)) << layer->Name();
    for (int64_t cut = 1; cut < kTokens; ++cut) {
      ASSERT_TRUE(SameBits(AttentionRunner(*layer, 1).RunCut(packed, {cut, kTokens}), whole))
          << layer->Name() << " cut at " << cut;
    }
    std::vector<int64_t> lengths(kTokens);
    for (int64_t& length : lengths) length = 1 + random_.Below(20);
    EXPECT_TRUE(SameBits(AttentionRunner(*layer, 1).RunCut(packed, lengths), whole))
        << layer->Name();
  }
}

TEST_P(AttentionExactnessTest, GeneratedTokensHaveTheSameBitsOneByOneAndTogether) {
  constexpr int64_t kTokens = 140;
  for (const AttentionLayer* layer : Layers(2, 8)) {
    const std::vector<float> packed = RandomPacked(*layer, kTokens);
    EXPECT_TRUE(SameBits(AttentionRunner(*layer, 1).RunCut(packed, {1}, 70),
                         AttentionRunner(*layer, 1).RunCut(packed, {kTokens}, 70)))
        << layer->Name();
  }
}

TEST_P(AttentionExactnessTest, ALaterTokenChangesNoEarlierOutput) {
  constexpr int64_t kTokens = 120;
  for (const AttentionLayer* layer : Layers(2, 17)) {
    const std::vector<float> packed = RandomPacked(*layer, kTokens);
    const int64_t hid = layer->params.hid();
    for (const float value : {1e4F, std::numeric_limits<float>::quiet_NaN()}) {
      const int64_t changed = 1 + random_.Below(kTokens - 1);
      std::vector<float> other = packed;
      std::fill_n(other.begin() + changed * layer->packed_width(), layer->packed_width(), value);
      const std::vector<float> y = AttentionRunner(*layer, 1).RunCut(packed, {kTokens});
      const std::vector<float> y2 = AttentionRunner(*layer, 1).RunCut(other, {kTokens});
      EXPECT_TRUE(SameBits(Tokens(y, hid, 0, changed), Tokens(y2, hid, 0, changed)))
          << layer->Name();
      EXPECT_FALSE(SameBits(y, y2));
      const std::vector<float> e = RunEncode(*layer, {packed}, {})[0];
      const std::vector<float> e2 = RunEncode(*layer, {other}, {})[0];
      EXPECT_TRUE(SameBits(Tokens(e, hid, 0, changed), Tokens(e2, hid, 0, changed)))
          << layer->Name();
    }
  }
}

TEST_P(AttentionExactnessTest, BatchNeighboursChangeNoBit) {
  constexpr int64_t kSequences = 5;
  constexpr int64_t kTokens = 100;
  for (const AttentionLayer* layer : Layers(2, 12)) {
    const int64_t width = layer->packed_width();
    std::vector<std::vector<float>> inputs;
    std::vector<std::vector<float>> outputs(kSequences);
    for (int64_t i = 0; i < kSequences; ++i) inputs.push_back(RandomPacked(*layer, kTokens));
    std::vector<int64_t> positions(kSequences, 0);
    AttentionRunner together(*layer, kSequences);
    while (*std::min_element(positions.begin(), positions.end()) < kTokens) {
      std::vector<AttentionChunk> chunks;
      std::vector<size_t> sequences;
      for (size_t i = 0; i < kSequences; ++i) {
        if (positions[i] == kTokens || random_.Below(3) == 0) continue;
        const int64_t end =
            std::min(kTokens, positions[i] + (random_.Below(2) == 0 ? 1 : 1 + random_.Below(60)));
        chunks.push_back({static_cast<int32_t>(kSequences - 1 - i), positions[i],
                          Tokens(inputs[i], width, positions[i], end)});
        sequences.push_back(i);
        positions[i] = end;
      }
      chunks.push_back({-1, 5, RandomPacked(*layer, 2)});
      const std::vector<std::vector<float>> parts = together.Run(chunks);
      for (size_t j = 0; j < sequences.size(); ++j) {
        std::vector<float>& output = outputs[sequences[j]];
        output.insert(output.end(), parts[j].begin(), parts[j].end());
      }
    }
    for (size_t i = 0; i < kSequences; ++i) {
      EXPECT_TRUE(SameBits(outputs[i], AttentionRunner(*layer, 1).RunCut(inputs[i], {kTokens})))
          << layer->Name();
    }
  }
}

TEST_P(AttentionExactnessTest, EncodingIsTheSameBitsAloneAndInABatch) {
  for (AttentionLayer* layer : Layers(2, 10)) {
    for (const bool causal : {true, false}) {
      layer->params.causal = causal;
      std::vector<std::vector<float>> sequences;
      for (const int64_t tokens : {3, 150, 1, 64}) {
        sequences.push_back(RandomPacked(*layer, tokens));
      }
      const std::vector<std::vector<float>> together = RunEncode(*layer, sequences, {});
      for (size_t i = 0; i < sequences.size(); ++i) {
        EXPECT_TRUE(SameBits(RunEncode(*layer, {sequences[i]}, {})[0], together[i]))
            << layer->Name();
      }
    }
  }
}

TEST_P(AttentionExactnessTest, CausalEncodingIsTheSameBitsAsPrefill) {
  for (const AttentionLayer* layer : Layers(2, 10)) {
    const std::vector<float> packed = RandomPacked(*layer, kCapacity);
    EXPECT_TRUE(SameBits(RunEncode(*layer, {packed}, {})[0],
                         AttentionRunner(*layer, 1).RunCut(packed, {kCapacity})))
        << layer->Name();
  }
}

TEST_P(AttentionExactnessTest, AReusedSlotKeepsNoTrace) {
  for (const AttentionLayer* layer : Layers(2, 9)) {
    const std::vector<float> first = RandomPacked(*layer, kCapacity);
    const std::vector<float> second = RandomPacked(*layer, 70);
    const std::vector<float> fresh = AttentionRunner(*layer, 1).RunCut(second, {9, 1});
    AttentionRunner used(*layer, 1);
    used.RunCut(first, {kCapacity});
    EXPECT_TRUE(SameBits(used.RunCut(second, {9, 1}), fresh)) << layer->Name();
  }
}

TEST_P(AttentionExactnessTest, PaddingWritesZerosAndTouchesNoState) {
  for (const AttentionLayer* layer : Layers(3, 9)) {
    AttentionRunner runner(*layer, 2);
    const std::vector<float> before = runner.states();
    const std::vector<float> y = runner.Run({{-1, 3, RandomPacked(*layer, 9)}})[0];
    EXPECT_TRUE(SameBits(y, std::vector<float>(y.size(), 0.0F)));
    EXPECT_TRUE(SameBits(runner.states(), before));
  }
}

TEST_P(AttentionExactnessTest, OtherSlotsAreNotTouched) {
  for (const AttentionLayer* layer : Layers(2, 9)) {
    AttentionRunner runner(*layer, 3);
    const std::vector<float> before = runner.states();
    runner.Run({{1, 0, RandomPacked(*layer, kCapacity)}});
    const int64_t slot = layer->slot_floats();
    for (const int64_t other : {0, 2}) {
      EXPECT_TRUE(SameBits(Tokens(runner.states(), slot, other, other + 1),
                           Tokens(before, slot, other, other + 1)));
    }
  }
}

TEST_P(AttentionExactnessTest, ANanStaysInItsSequenceAndIsSeen) {
  for (const AttentionLayer* layer : Layers(2, 9)) {
    std::vector<float> packed = RandomPacked(*layer, 50);
    AttentionRunner runner(*layer, 2);
    const std::vector<float> other = RandomPacked(*layer, 50);
    const std::vector<float> alone = AttentionRunner(*layer, 1).RunCut(other, {50});
    packed[static_cast<size_t>(49 * layer->packed_width())] =
        std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::vector<float>> y = runner.Run({{0, 0, packed}, {1, 0, other}});
    EXPECT_TRUE(SameBits(y[1], alone)) << layer->Name();
    EXPECT_TRUE(std::isnan(y[0][static_cast<size_t>(49 * layer->params.hid())])) << layer->Name();
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, AttentionExactnessTest, testing::ValuesIn(InstructionSets()),
                         InstructionSetName);

}  // namespace
}  // namespace aft
