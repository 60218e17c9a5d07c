// What the attention kernels of model/kernels/cuda promise about states, batches and cuts.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda/attention_device.h"
#include "tests/property/attention_harness.h"

namespace aft {
namespace {

constexpr int64_t kCapacity = 110;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CudaAttentionExactnessTest : public testing::Test {
 protected:
  // One layer of every kind, and of block-local several.
  std::vector<AttentionLayer*> Layers(int64_t heads, int64_t width) {
    layers_.clear();
    for (const AttentionKind kind : kAttentionKinds) Add(kind, heads, width);
    for (const int64_t block : {7, 32}) {
      Add(AttentionKind::kBlockLocal, heads, width).params.block_size = block;
    }
    Add(AttentionKind::kBlockLocal, heads, width).params.global_token = false;
    Add(AttentionKind::kBlockLocal, heads, width).params.full_decode = true;
    std::vector<AttentionLayer*> layers;
    for (const auto& layer : layers_) layers.push_back(layer.get());
    return layers;
  }

  std::vector<float> RandomPacked(const AttentionLayer& layer, int64_t tokens) {
    return random_.Normals(tokens * layer.packed_width());
  }

  static void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, double allowed,
                         const AttentionLayer& layer) {
    ASSERT_EQ(a.size(), b.size());
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
      const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      worst = difference <= worst ? worst : difference;
    }
    EXPECT_TRUE(worst <= allowed) << layer.Name() << ": " << worst;
  }

  TestRandom random_;

 private:
  AttentionLayer& Add(AttentionKind kind, int64_t heads, int64_t width) {
    layers_.push_back(std::make_unique<AttentionLayer>(kind, heads, width, kCapacity, random_));
    return *layers_.back();
  }

  std::vector<std::unique_ptr<AttentionLayer>> layers_;
};

TEST_F(CudaAttentionExactnessTest, DecodeEqualsPrefillAndAnyCut) {
  for (const AttentionLayer* layer : Layers(1, 16)) {
    const std::vector<float> packed = RandomPacked(*layer, kCapacity);
    const std::vector<float> whole = DeviceAttention(*layer, 1).RunCut(packed, {kCapacity});
    ExpectNear(DeviceAttention(*layer, 1).RunCut(packed, {1}), whole, 5e-6, *layer);
    std::vector<int64_t> lengths(kCapacity);
    for (int64_t& length : lengths) length = 1 + random_.Below(40);
    ExpectNear(DeviceAttention(*layer, 1).RunCut(packed, lengths), whole, 5e-6, *layer);
  }
}

TEST_F(CudaAttentionExactnessTest, CausalEncodingEqualsPrefill) {
  for (const AttentionLayer* layer : Layers(2, 8)) {
    const std::vector<float> packed = RandomPacked(*layer, kCapacity);
    EXPECT_TRUE(SameBits(DeviceAttention(*layer, 1).Encode({packed}, {})[0],
                         DeviceAttention(*layer, 1).RunCut(packed, {kCapacity})))
        << layer->Name();
  }
}

// The CPU's kernel and the GPU's take turns on the same state.
TEST_F(CudaAttentionExactnessTest, TheStateIsThatOfTheCpu) {
  for (const AttentionLayer* layer : Layers(2, 10)) {
    const std::vector<float> packed = RandomPacked(*layer, kCapacity);
    DeviceAttention device(*layer, 1);
    AttentionRunner cpu(*layer, 1);
    std::vector<float> mixed;
    const int64_t width = layer->packed_width();
    const std::vector<float> expected = AttentionRunner(*layer, 1).RunCut(packed, {kCapacity});
    bool on_device = true;
    for (int64_t t = 0; t < kCapacity;) {
      const int64_t end =
          std::min(kCapacity, t + (random_.Below(2) == 0 ? 1 : 1 + random_.Below(50)));
      const std::vector<AttentionChunk> chunk = {{0, t, Tokens(packed, width, t, end)}};
      std::vector<float> part;
      if (on_device) {
        part = (end - t == 1 ? device.Step(chunk) : device.Prefill(chunk))[0];
        cpu.Run(chunk);
        ExpectNear(device.states(), cpu.states(), 1e-6, *layer);
        cpu.states() = device.states();
      } else {
        part = cpu.Run(chunk)[0];
        device.set_states(cpu.states());
      }
      mixed.insert(mixed.end(), part.begin(), part.end());
      on_device = !on_device;
      t = end;
    }
    ExpectNear(mixed, expected, 2e-5, *layer);
  }
}

TEST_F(CudaAttentionExactnessTest, BatchNeighboursChangeNoBit) {
  constexpr int64_t kSequences = 3;
  constexpr int64_t kTokens = 60;
  for (const AttentionLayer* layer : Layers(2, 12)) {
    const int64_t width = layer->packed_width();
    std::vector<std::vector<float>> inputs;
    for (int64_t i = 0; i < kSequences; ++i) inputs.push_back(RandomPacked(*layer, kTokens));
    DeviceAttention together(*layer, kSequences);
    std::vector<std::unique_ptr<DeviceAttention>> alone;
    std::vector<int64_t> positions(kSequences, 0);
    for (int64_t i = 0; i < kSequences; ++i) {
      alone.push_back(std::make_unique<DeviceAttention>(*layer, 1));
    }
    for (int round = 0; round < 4; ++round) {
      const bool steps = round % 2 == 1;
      std::vector<AttentionChunk> chunks = {{-1, 5, RandomPacked(*layer, steps ? 1 : 40)}};
      for (size_t i = kSequences; i-- > 0;) {  // the slots in another order than the rows
        const int64_t end = positions[i] + (steps ? 1 : 1 + random_.Below(28));
        chunks.push_back({static_cast<int32_t>((i + 1) % kSequences), positions[i],
                          Tokens(inputs[i], width, positions[i], end)});
        positions[i] = end;
      }
      const auto parts = steps ? together.Step(chunks) : together.Prefill(chunks);
      EXPECT_TRUE(SameBits(parts[0], std::vector<float>(parts[0].size(), 0.0F)));
      for (size_t i = 0; i < kSequences; ++i) {
        AttentionChunk chunk = chunks[kSequences - i];
        chunk.slot = 0;
        const auto own = steps ? alone[i]->Step({chunk}) : alone[i]->Prefill({chunk});
        EXPECT_TRUE(SameBits(parts[kSequences - i], own[0])) << layer->Name();
      }
    }
  }
}

TEST_F(CudaAttentionExactnessTest, EncodingIsTheSameBitsAloneAndInABatch) {
  for (AttentionLayer* layer : Layers(2, 8)) {
    layer->params.causal = random_.Below(2) == 0;
    std::vector<std::vector<float>> sequences;
    for (const int64_t tokens : {3, 100, 0, 1, 64}) {
      sequences.push_back(RandomPacked(*layer, tokens));
    }
    const auto together = DeviceAttention(*layer, 1).Encode(sequences, {});
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].empty()) continue;
      EXPECT_TRUE(SameBits(DeviceAttention(*layer, 1).Encode({sequences[i]}, {})[0], together[i]))
          << layer->Name();
    }
  }
}

// More rows than one round of the search for a tile's row takes, some of them empty.
TEST_F(CudaAttentionExactnessTest, ManyShortRowsFindTheirTiles) {
  constexpr int64_t kRows = 75;
  for (const AttentionKind kind : {AttentionKind::kDot, AttentionKind::kLocation}) {
    const AttentionLayer layer(kind, 1, 4, kCapacity, random_);
    std::vector<std::vector<float>> texts;
    std::vector<AttentionChunk> chunks;
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t tokens = i % 20 == 3 ? 64 + random_.Below(20) : random_.Below(4);
      texts.push_back(RandomPacked(layer, tokens));
      chunks.push_back({static_cast<int32_t>(kRows - 1 - i), 0, texts.back()});
    }
    const auto encoded = DeviceAttention(layer, 1).Encode(texts, {});
    EXPECT_EQ(DeviceAttention(layer, kRows).Prefill(chunks), encoded);
    for (size_t i = 0; i < kRows; ++i) {
      if (texts[i].empty()) continue;
      ExpectNear(encoded[i], AttentionRunner(layer, 1).RunCut(texts[i], {kCapacity}), 1e-5, layer);
    }
  }
}

TEST_F(CudaAttentionExactnessTest, RefusesWhatItCannotDo) {
  AttentionLayer layer(AttentionKind::kCosine, 1, 4, kCapacity, random_);
  const kernels::cuda::In fp32 = {nullptr, Number::kFp32, 13};
  const kernels::cuda::In fp16 = {nullptr, Number::kFp16, 13};
  const auto refused = [&](const kernels::cuda::In& in) {
    EXPECT_NE(kernels::cuda::AttentionStep(layer.params, {}, in, {}, {}, nullptr, nullptr), 0);
    EXPECT_NE(kernels::cuda::AttentionPrefill(layer.params, {}, in, {}, {}, nullptr, nullptr), 0);
    if (layer.params.causal) {
      EXPECT_NE(kernels::cuda::AttentionEncode(layer.params, {}, in, {}, nullptr, nullptr), 0);
    }
  };
  refused(fp16);
  layer.params.block_size = 16;
  refused(fp32);
  layer.params.block_size = 0;
  layer.params.causal = false;
  refused(fp32);
}

TEST_F(CudaAttentionExactnessTest, AReusedSlotKeepsNoTrace) {
  for (const AttentionLayer* layer : Layers(2, 9)) {
    const std::vector<float> packed = RandomPacked(*layer, 50);
    const std::vector<float> fresh = DeviceAttention(*layer, 1).RunCut(packed, {40, 1});
    DeviceAttention used(*layer, 1);
    used.RunCut(RandomPacked(*layer, kCapacity), {kCapacity});
    EXPECT_TRUE(SameBits(used.RunCut(packed, {40, 1}), fresh)) << layer->Name();
  }
}

TEST_F(CudaAttentionExactnessTest, PaddingWritesZerosAndNoOtherSlotIsTouched) {
  for (const AttentionLayer* layer : Layers(3, 9)) {
    DeviceAttention device(*layer, 3);
    const std::vector<float> before = device.states();
    for (const int64_t tokens : {1, 9}) {
      const std::vector<AttentionChunk> padding = {{-1, 3, RandomPacked(*layer, tokens)}};
      const auto y = tokens == 1 ? device.Step(padding)[0] : device.Prefill(padding)[0];
      EXPECT_TRUE(SameBits(y, std::vector<float>(y.size(), 0.0F)));
      EXPECT_TRUE(SameBits(device.states(), before));
    }
    device.Prefill({{1, 0, RandomPacked(*layer, 70)}});
    device.Step({{1, 70, RandomPacked(*layer, 1)}});
    const int64_t slot = layer->slot_floats();
    for (const int64_t other : {0, 2}) {
      EXPECT_TRUE(SameBits(Tokens(device.states(), slot, other, other + 1),
                           Tokens(before, slot, other, other + 1)))
          << layer->Name();
    }
  }
}

// A NaN or infinity in one token's head: other heads do not change by a bit, earlier tokens only by
// rounding (their tile is done again without tensor cores), and the token itself shows it.
TEST_F(CudaAttentionExactnessTest, ANanStaysInItsHeadAndItsFuture) {
  constexpr int64_t kTokens = 80;
  for (const AttentionLayer* layer : Layers(2, 16)) {
    const kernels::AttentionParams& p = layer->params;
    const int64_t width = layer->packed_width();
    for (const float value : {kNan, std::numeric_limits<float>::infinity()}) {
      for (const bool steps : {false, true}) {
        const std::vector<float> packed = RandomPacked(*layer, kTokens);
        const int64_t changed = 1 + random_.Below(kTokens - 1);
        const int64_t head = p.heads - 1;
        std::vector<float> other = packed;
        const bool in_value = random_.Below(2) == 0;
        float* row = other.data() + changed * width;
        if (in_value) {
          row[p.ValueColumn() + head * p.value_width] = value;
        } else {
          row[head * p.score_width] = kNan;
        }
        const std::vector<int64_t> lengths = {steps ? changed : kTokens, 1};
        const std::vector<float> y = DeviceAttention(*layer, 1).RunCut(packed, lengths);
        const std::vector<float> y2 = DeviceAttention(*layer, 1).RunCut(other, lengths);
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t c = 0; c < p.hid(); ++c) {
            const float a = y[static_cast<size_t>(t * p.hid() + c)];
            const float b = y2[static_cast<size_t>(t * p.hid() + c)];
            if (c / p.value_width != head) {
              ASSERT_EQ(a, b) << layer->Name() << " token " << t << ", NaN at " << changed;
            } else if (t < changed) {
              ASSERT_NEAR(a, b, 5e-6) << layer->Name() << " token " << t << ", NaN at " << changed;
            }
          }
        }
        EXPECT_FALSE(
            std::isfinite(y2[static_cast<size_t>(changed * p.hid() + head * p.value_width)]))
            << layer->Name();
      }
    }
  }
}

}  // namespace
}  // namespace aft
