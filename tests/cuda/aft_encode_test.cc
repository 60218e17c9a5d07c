// AftEncode against the formula in float64: whole texts, causal and not, with and without masks.

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/cuda/aft_prefill_harness.h"

namespace aft::aft_prefill_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

void ExpectEncodes(TestRandom& random, const Layer& layer, const std::string& keys, int64_t tokens,
                   Storage storage = {}, const std::vector<float>& mask = {}) {
  SCOPED_TRACE(layer.Name() + ", keys " + keys + ", " + std::to_string(tokens) + " tokens" +
               (storage.in == Number::kBf16 ? ", bf16" : "") + (mask.empty() ? "" : ", masked"));
  const Runner runner(random, layer, 1, storage);
  const std::vector<float> qkv = runner.Input(random, keys, tokens);
  std::vector<std::vector<float>> masks;
  if (!mask.empty()) masks.push_back(mask);
  runner.ExpectNear(runner.Encode({qkv}, masks)[0], qkv, mask);
}

TEST(AftEncodeTest, EveryWindowAndLength) {
  TestRandom random;
  for (const bool causal : {true, false}) {
    for (const int64_t window : {0, 1, 2, 33, 65, 66, 150}) {
      for (const int64_t tokens : {1, 2, 64, 65, 200}) {
        const Layer layer = {.hid = 8, .window = window, .causal = causal};
        ExpectEncodes(random, layer, "n1", tokens);
        if (tokens > 130) ExpectEncodes(random, layer, "n1", tokens, kBf16);
      }
    }
  }
}

TEST(AftEncodeTest, EveryWidth) {
  TestRandom random;
  for (const int64_t hid : {1, 2, 33, 100, 192}) {
    for (const int64_t window : {0, 17}) {
      const Layer layer = {.hid = hid, .window = window, .causal = false};
      ExpectEncodes(random, layer, "n1", 70);
      ExpectEncodes(random, layer, "n1", 70, kBf16);
      for (const Number out : {Number::kBf16, Number::kFp16}) {
        ExpectEncodes(random, layer, "n1", 20, {Number::kFp32, out, true});
      }
    }
  }
}

TEST(AftEncodeTest, ExtremeKeysAndWideBiases) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    for (const int64_t window : {0, 20}) {
      for (const double spread : {1.0, 20.0}) {
        const Layer layer = {.hid = 4, .window = window, .spread = spread, .causal = false};
        ExpectEncodes(random, layer, keys, 150);
        ExpectEncodes(random, layer, keys, 150, kBf16);
      }
    }
  }
}

TEST(AftEncodeTest, BiasesByPosition) {
  TestRandom random;
  for (const bool causal : {true, false}) {
    ExpectEncodes(random, {.hid = 8, .window = 20, .bias_rows = 150, .causal = causal}, "n1", 150);
    ExpectEncodes(random, {.hid = 8, .window = 20, .bias_rows = 100, .causal = causal}, "n1", 150);
    ExpectEncodes(random, {.hid = 8, .window = 150, .bias_rows = 150, .causal = causal}, "n10",
                  150);
  }
}

TEST(AftEncodeTest, CausalPrefixRestartAndRing) {
  TestRandom random;
  for (const int64_t window : {0, 20}) {
    ExpectEncodes(random, {.hid = 8, .window = window, .prefix_block = 45}, "n1", 200);
    ExpectEncodes(random, {.hid = 8, .window = window, .ring = Number::kBf16}, "n1", 100);
  }
  // Only tokens that come from a ring are rounded.
  ExpectEncodes(random, {.hid = 8, .window = 1, .ring = Number::kBf16, .causal = false}, "n1", 90);
}

TEST(AftEncodeTest, Masks) {
  TestRandom random;
  const int64_t tokens = 150;
  for (const bool causal : {true, false}) {
    for (const int64_t window : {0, 1, 33}) {
      for (const int64_t block : {int64_t{0}, std::max<int64_t>(window, 40)}) {
        if (!causal && block > 0) continue;
        for (const std::string kind : {"right", "left", "some", "all", "added"}) {
          std::vector<float> mask(static_cast<size_t>(tokens), 0.0F);
          for (int64_t t = 0; t < tokens; ++t) {
            const bool hidden = (kind == "right" && t >= 77) || (kind == "left" && t < 100) ||
                                (kind == "some" && random.Below(2) == 0) || kind == "all";
            if (hidden) mask[static_cast<size_t>(t)] = t % 2 == 0 ? -kInf : -2e30F;
            if (kind == "added") mask[static_cast<size_t>(t)] = -3.0F * static_cast<float>(t % 5);
          }
          const Layer layer = {.hid = 6, .window = window, .prefix_block = block, .causal = causal};
          ExpectEncodes(random, layer, "n1", tokens, {}, mask);
          ExpectEncodes(random, layer, "n1", tokens, kBf16, mask);
        }
      }
    }
  }
}

TEST(AftEncodeTest, NeighboursDoNotMatter) {
  TestRandom random;
  for (const bool causal : {true, false}) {
    for (const int64_t window : {0, 20}) {
      const Layer layer = {.hid = 12, .window = window, .causal = causal};
      SCOPED_TRACE(layer.Name());
      const Runner runner(random, layer);
      std::vector<std::vector<float>> texts;
      std::vector<std::vector<float>> masks;
      for (const int64_t tokens : {70, 1, 200, 64, 3}) {
        texts.push_back(runner.Input(random, "n1", tokens));
        masks.emplace_back(static_cast<size_t>(tokens), 0.0F);
        masks.back().back() = -kInf;
      }
      const std::vector<std::vector<float>> y = runner.Encode(texts);
      const std::vector<std::vector<float>> masked = runner.Encode(texts, masks);
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_TRUE(SameBits(y[i], runner.Encode({texts[i]})[0]));
        EXPECT_TRUE(SameBits(masked[i], runner.Encode({texts[i]}, {masks[i]})[0]));
        runner.ExpectNear(y[i], texts[i]);
        runner.ExpectNear(masked[i], texts[i], masks[i]);
      }
    }
  }
}

TEST(AftEncodeTest, CausalIsPrefill) {
  TestRandom random;
  for (const int64_t window : {0, 1, 33}) {
    Runner runner(random, {.hid = 12, .window = window});
    const std::vector<float> qkv = runner.Input(random, "n10", 200);
    EXPECT_TRUE(SameBits(runner.Encode({qkv})[0], runner.Prefill({{0, 0, qkv}})[0]));
  }
}

TEST(AftEncodeTest, NonFiniteInputsStayInTheirChannel) {
  TestRandom random;
  for (const int64_t window : {0, 1, 33}) {
    for (const float bad : {kNan, kInf, -kInf}) {
      for (const int64_t what : {1, 2}) {
        const int64_t hid = 20;
        const Runner runner(random, {.hid = hid, .window = window, .causal = false});
        std::vector<float> qkv = runner.Input(random, "n1", 150);
        const std::vector<float> good = runner.Encode({qkv})[0];
        const int64_t channel = random.Below(hid);
        qkv[static_cast<size_t>((random.Below(150) * 3 + what) * hid + channel)] = bad;
        const std::vector<float> y = runner.Encode({qkv})[0];
        for (size_t i = 0; i < y.size(); ++i) {
          if (static_cast<int64_t>(i) % hid == channel) continue;
          ASSERT_EQ(y[i], good[i]);
        }
      }
    }
  }
}

TEST(AftEncodeTest, RefusesBlocksWithoutDirection) {
  const DeviceArray<float> memory(64);
  const kernels::cuda::AftModel model = {.hid = 8, .prefix_block = 4, .causal = false};
  EXPECT_NE(kernels::cuda::AftEncode(model, {}, {memory.get(), Number::kFp32, 24},
                                     {memory.get(), Number::kFp32, 8}, nullptr, nullptr),
            0);
}

}  // namespace
}  // namespace aft::aft_prefill_test
