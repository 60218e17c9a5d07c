// AftPrefill against the formula in float64 and against the CPU's kernel.

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/cuda/aft_prefill_harness.h"

namespace aft::aft_prefill_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// One prompt in one chunk: results, and the state against the CPU's.
void ExpectPrefills(TestRandom& random, const Layer& layer, const std::string& keys, int64_t tokens,
                    Storage storage = {}) {
  SCOPED_TRACE(layer.Name() + ", keys " + keys + ", " + std::to_string(tokens) + " tokens" +
               (storage.in == Number::kBf16 ? ", bf16" : ""));
  Runner runner(random, layer, 1, storage);
  const std::vector<float> qkv = runner.Input(random, keys, tokens);
  runner.ExpectNear(runner.Prefill({{0, 0, qkv}})[0], qkv);
  runner.OnCpu({{0, 0, qkv}});
  runner.ExpectStatesOfCpu({0});
}

TEST(AftPrefillTest, EveryWindow) {
  TestRandom random;
  for (const int64_t window : {0, 1, 2, 31, 32, 33, 65, 200}) {
    ExpectPrefills(random, {.hid = 8, .window = window}, "n1", 131);
    ExpectPrefills(random, {.hid = 8, .window = window}, "n1", 131, kBf16);
  }
}

TEST(AftPrefillTest, EveryLength) {
  TestRandom random;
  for (const int64_t window : {0, 1, 32, 65}) {
    std::vector<int64_t> lengths = {1, 2, 63, 64, 65, 131, 300};
    if (window > 1) lengths.insert(lengths.end(), {window - 1, window, window + 1});
    for (const int64_t tokens : lengths) {
      ExpectPrefills(random, {.hid = 8, .window = window}, "n1", tokens);
    }
  }
}

TEST(AftPrefillTest, EveryWidth) {
  TestRandom random;
  for (const int64_t hid : {1, 2, 8, 33, 64, 100, 192}) {
    for (const int64_t window : {0, 17}) {
      ExpectPrefills(random, {.hid = hid, .window = window}, "n1", 70);
      ExpectPrefills(random, {.hid = hid, .window = window}, "n1", 70, kBf16);
    }
  }
}

TEST(AftPrefillTest, EveryStorage) {
  TestRandom random;
  for (const int64_t window : {0, 9}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      for (const Number out : {Number::kFp32, Number::kBf16, Number::kFp16}) {
        for (const int64_t hid : {12, 7}) {
          const Layer layer = {.hid = hid, .window = window, .ring = ring};
          for (const int64_t tokens : {40, 70}) {  // walked through, and in tiles
            ExpectPrefills(random, layer, "n1", tokens, {Number::kFp32, out, true});
            if (out == Number::kBf16) {
              ExpectPrefills(random, layer, "n1", tokens, {Number::kBf16, out, true});
            }
          }
        }
      }
    }
  }
}

TEST(AftPrefillTest, ExtremeKeys) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    for (const int64_t window : {0, 2, 33}) {
      ExpectPrefills(random, {.hid = 8, .window = window}, keys, 140);
      ExpectPrefills(random, {.hid = 8, .window = window}, keys, 140, kBf16);
    }
  }
}

TEST(AftPrefillTest, WideBiases) {
  TestRandom random;
  for (const double spread : {0.1, 5.0, 20.0, 60.0}) {
    for (const std::string keys : {"n1", "u100", "spike"}) {
      ExpectPrefills(random, {.hid = 8, .window = 33, .spread = spread}, keys, 140);
      ExpectPrefills(random, {.hid = 8, .window = 33, .spread = spread}, keys, 140, kBf16);
    }
  }
}

TEST(AftPrefillTest, BiasesByPositionEndWithTheLastRow) {
  TestRandom random;
  ExpectPrefills(random, {.hid = 8, .window = 20, .bias_rows = 100}, "n1", 140);
  ExpectPrefills(random, {.hid = 8, .window = 140, .bias_rows = 140}, "n10", 140);  // AFT-full
  ExpectPrefills(random, {.hid = 8, .window = 140, .bias_rows = 140}, "n10", 140, kBf16);
}

TEST(AftPrefillTest, PrefixRestart) {
  TestRandom random;
  for (const int64_t window : {0, 1, 20}) {
    for (const int64_t block :
         {std::max<int64_t>(window, 1), int64_t{23}, int64_t{64}, int64_t{100}}) {
      const Layer layer = {.hid = 8, .window = window, .prefix_block = block};
      ExpectPrefills(random, layer, "n1", 220);
      ExpectPrefills(random, layer, "n1", 220, kBf16);
    }
  }
}

TEST(AftPrefillTest, CutsAtEveryKindOfPlace) {
  TestRandom random;
  const std::vector<std::vector<int64_t>> cuts = {{1},          {64},           {63, 2},  {100},
                                                  {37, 64, 11}, {2, 62, 1, 85}, {32, 31}, {140, 1}};
  for (const int64_t window : {0, 1, 2, 33, 80}) {
    for (const int64_t block : {int64_t{0}, std::max<int64_t>(window, 26)}) {
      if (block > 0 && window > 1 && window < 80) continue;
      const Layer layer = {.hid = 4, .window = window, .prefix_block = block};
      for (const std::vector<int64_t>& lengths : cuts) {
        SCOPED_TRACE(layer.Name() + ", first cut at " + std::to_string(lengths[0]));
        Runner runner(random, layer);
        const std::vector<float> qkv = runner.Input(random, "n1", 150);
        runner.ExpectNear(runner.PrefillCut(qkv, lengths), qkv);
        runner.OnCpu({{0, 0, qkv}});
        runner.ExpectStatesOfCpu({0});
      }
    }
  }
}

TEST(AftPrefillTest, CutsWithSixteenBits) {
  TestRandom random;
  for (const int64_t window : {0, 33}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      Runner runner(random, {.hid = 12, .window = window, .ring = ring}, 1, kBf16);
      const std::vector<float> qkv = runner.Input(random, "n1", 150);
      runner.ExpectNear(runner.PrefillCut(qkv, {37, 64, 11}), qkv);
      runner.OnCpu({{0, 0, qkv}});
      runner.ExpectStatesOfCpu({0});
    }
  }
}

TEST(AftPrefillTest, CutsThroughExtremeKeysAndWideBiases) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    for (const int64_t window : {0, 20}) {
      Runner runner(random, {.hid = 4, .window = window, .spread = 20.0});
      const std::vector<float> qkv = runner.Input(random, keys, 150);
      SCOPED_TRACE(keys);
      runner.ExpectNear(runner.PrefillCut(qkv, {37, 64, 11}), qkv);
    }
  }
}

TEST(AftPrefillTest, TheCpuDecodesOnAndBack) {
  TestRandom random;
  for (const Number ring : {Number::kFp32, Number::kBf16}) {
    for (const int64_t window : {0, 1, 33}) {
      for (const int64_t block : {0, 40}) {
        const Layer layer = {.hid = 6, .window = window, .ring = ring, .prefix_block = block};
        SCOPED_TRACE(layer.Name());
        Runner runner(random, layer);
        const std::vector<float> qkv = runner.Input(random, "n1", 200);
        const auto chunk = [&](int64_t from, int64_t to) {
          return Chunk{0, from, Part(qkv, 3 * layer.hid, from, to)};
        };
        std::vector<float> y = runner.Prefill({chunk(0, 90)})[0];
        const auto append = [&y](const std::vector<float>& part) {
          y.insert(y.end(), part.begin(), part.end());
        };
        runner.CopyStatesToCpu();
        for (int64_t t = 90; t < 110; ++t) append(runner.OnCpu({chunk(t, t + 1)})[0]);
        runner.CopyStatesFromCpu();
        append(runner.Prefill({chunk(110, 200)})[0]);
        runner.ExpectNear(y, qkv);
      }
    }
  }
}

// Rows of very different length in any order of slots, with padding rows; the same bits as each
// row by itself.
TEST(AftPrefillTest, NeighboursDoNotMatter) {
  TestRandom random;
  for (const int64_t window : {0, 1, 33}) {
    for (const int64_t block : {0, 50}) {
      const Layer layer = {.hid = 12, .window = window, .prefix_block = block};
      SCOPED_TRACE(layer.Name());
      Runner together(random, layer, 7);
      Runner alone = together.Copy();
      const std::vector<float> garbage(static_cast<size_t>(5 * 3 * layer.hid), kNan);
      const int64_t lengths[] = {1, 130, 64, 3, 70};
      const int32_t slots[] = {4, 0, 6, 1, 3};
      std::vector<std::vector<float>> texts;
      for (const int64_t length : lengths) {
        texts.push_back(together.Input(random, "n1", 2 * length));
      }
      for (int64_t part = 0; part < 2; ++part) {
        std::vector<Chunk> chunks;
        for (size_t i = 0; i < 5; ++i) {
          const int64_t n = lengths[i];
          chunks.push_back(
              {slots[i], part * n, Part(texts[i], 3 * layer.hid, part * n, (part + 1) * n)});
          if (i % 2 == 0) chunks.push_back({-1, 17, garbage});
        }
        const std::vector<std::vector<float>> y = together.Prefill(chunks);
        for (size_t i = 0; i < chunks.size(); ++i) {
          if (chunks[i].slot < 0) {
            EXPECT_EQ(y[i], std::vector<float>(y[i].size(), 0.0F));
          } else {
            EXPECT_TRUE(SameBits(y[i], alone.Prefill({chunks[i]})[0])) << "row " << i;
          }
        }
      }
      EXPECT_TRUE(SameBits(together.states(), alone.states()));
      for (const int32_t slot : {2, 5}) {
        for (const float x : together.State(slot)) EXPECT_TRUE(std::isnan(x));
      }
    }
  }
}

// Enough rows that each is walked through by one thread or one block, where a row by itself has
// its tiles worked on at once.
TEST(AftPrefillTest, WalkingGivesTheBitsOfTiles) {
  TestRandom random;
  struct Case {
    Layer layer;
    int64_t rows;
    int64_t tokens;
    Storage storage;
    int64_t parts;
  };
  for (const Case& c :
       {Case{{.hid = 4, .window = 20}, 192, 66, {}, 2},
        Case{{.hid = 4, .window = 20}, 192, 66, kBf16, 1}, Case{{.hid = 1024}, 65, 65, kBf16, 1}}) {
    SCOPED_TRACE(c.layer.Name());
    Runner together(random, c.layer, c.rows, c.storage);
    Runner alone = together.Copy();
    for (int64_t part = 0; part < c.parts; ++part) {
      const std::vector<float> qkv = together.Input(random, "n10", c.tokens);
      std::vector<Chunk> chunks;
      for (int64_t i = 0; i < c.rows; ++i) {
        chunks.push_back({static_cast<int32_t>(i), part * c.tokens, qkv});
      }
      chunks[1].position = 0;  // and another text in this one
      const std::vector<std::vector<float>> y = together.Prefill(chunks);
      for (const size_t i : {size_t{0}, size_t{1}, chunks.size() - 1}) {
        EXPECT_TRUE(SameBits(y[i], alone.Prefill({chunks[i]})[0])) << "row " << i;
        EXPECT_TRUE(SameBits(together.State(chunks[i].slot), alone.State(chunks[i].slot)));
      }
    }
  }
}

TEST(AftPrefillTest, PositionZeroIgnoresTheState) {
  TestRandom random;
  for (const int64_t window : {0, 1, 33}) {
    Runner runner(random, {.hid = 8, .window = window});
    const std::vector<float> first = runner.Input(random, "n1", 90);
    const std::vector<float> second = runner.Input(random, "n1", 90);
    runner.Prefill({{0, 0, first}});
    runner.ExpectNear(runner.Prefill({{0, 0, second}})[0], second);
  }
}

// What is not finite stays in its channel and does not reach tokens before it.
TEST(AftPrefillTest, NonFiniteInputsStayWhereTheyAre) {
  TestRandom random;
  for (const Storage storage : {Storage{}, kBf16}) {
    for (const int64_t window : {0, 1, 33}) {
      for (const float bad : {kNan, kInf, -kInf}) {
        for (const int64_t what : {0, 1, 2}) {
          const int64_t hid = 20;
          const int64_t tokens = 150;
          Runner runner(random, {.hid = hid, .window = window}, 2, storage);
          std::vector<float> qkv = runner.Input(random, "n1", tokens);
          const std::vector<float> good = runner.Prefill({{0, 0, qkv}})[0];
          const int64_t token = random.Below(tokens);
          const int64_t channel = random.Below(hid);
          qkv[static_cast<size_t>((token * 3 + what) * hid + channel)] = bad;
          const std::vector<float> y = runner.Prefill({{1, 0, qkv}})[0];
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t c = 0; c < hid; ++c) {
              const auto at = static_cast<size_t>(t * hid + c);
              const bool reached = c == channel && (what == 0 ? t == token : t >= token);
              if (reached) continue;
              if (c != channel) {
                ASSERT_EQ(y[at], good[at]) << "token " << t << ", channel " << c;
              } else {
                ASSERT_NEAR(y[at], good[at], storage.in == Number::kBf16 ? 1e-2 : 1e-5);
              }
            }
          }
        }
      }
    }
  }
}

TEST(AftPrefillTest, ExtremeGates) {
  TestRandom random;
  for (const int64_t window : {0, 20}) {
    Runner runner(random, {.hid = 8, .window = window});
    std::vector<float> qkv = runner.Input(random, "n1", 70);
    for (size_t i = 0; i < qkv.size(); ++i) {
      if (i % 24 < 8) qkv[i] = i % 2 == 0 ? 1e4F : -1e4F;
    }
    runner.ExpectNear(runner.Prefill({{0, 0, qkv}})[0], qkv);
  }
}

TEST(AftPrefillTest, ConstantValuesComeOutAsTheyAre) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    Runner runner(random, {.hid = 4, .window = 20});
    std::vector<float> qkv = runner.Input(random, keys, 140);
    for (size_t i = 0; i < qkv.size(); ++i) {
      if (i % 12 < 4) qkv[i] = 1e4F;  // an open gate
      if (i % 12 >= 8) qkv[i] = 2.5F;
    }
    const std::vector<float> y = runner.Prefill({{0, 0, qkv}})[0];
    for (const float value : y) ASSERT_NEAR(value, 2.5F, 5e-6) << keys;
  }
}

TEST(AftPrefillTest, RefusesWhatItHasNoKernelFor) {
  const kernels::cuda::AftModel model = {.hid = 8};
  const DeviceArray<float> memory(64);
  const kernels::cuda::In bf16 = {memory.get(), Number::kBf16, 24};
  const kernels::cuda::In fp16 = {memory.get(), Number::kFp16, 24};
  const kernels::cuda::Out fp32 = {memory.get(), Number::kFp32, 8};
  const auto refuses = [&](const kernels::cuda::AftModel& m, kernels::cuda::In in) {
    return kernels::cuda::AftPrefill(m, {}, in, {}, fp32, nullptr, nullptr) != 0;
  };
  EXPECT_TRUE(refuses(model, bf16));
  EXPECT_TRUE(refuses(model, fp16));
  EXPECT_TRUE(refuses({.hid = 8, .causal = false}, {memory.get(), Number::kFp32, 24}));
  EXPECT_FALSE(refuses(model, {memory.get(), Number::kFp32, 24}));  // no rows: nothing to do
}

// By hand: AFT_CUDA_FULL=1.
TEST(AftPrefillTest, WholeMatrix) {
  if (!Full()) GTEST_SKIP() << "AFT_CUDA_FULL is not set";
  TestRandom random;
  for (const int64_t window : {0, 1, 2, 31, 32, 33, 65, 200, 400}) {
    for (const int64_t block : {0, 64, 128, 100}) {
      if (block > 0 && block < window) continue;
      for (const int64_t hid : {1, 8, 33, 64, 100, 192}) {
        for (const int64_t tokens :
             {int64_t{1}, int64_t{2}, window - 1, window, window + 1, int64_t{63}, int64_t{64},
              int64_t{65}, int64_t{131}, int64_t{300}}) {
          if (tokens < 1) continue;
          const double spread = std::vector<double>{0.1, 1.0, 5.0, 20.0}[random.Below(4)];
          const std::string& keys = kKeySets[static_cast<size_t>(random.Below(10))];
          const Layer layer = {
              .hid = hid, .window = window, .prefix_block = block, .spread = spread};
          ExpectPrefills(random, layer, keys, tokens, random.Below(2) == 0 ? kBf16 : Storage{});
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft::aft_prefill_test
