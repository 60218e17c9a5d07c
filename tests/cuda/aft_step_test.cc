// AftStep against the formula in float64 and against the CPU's kernel.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "gtest/gtest.h"
#include "tests/cuda/aft_step_harness.h"

namespace aft::aft_step_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The large matrix, by hand.
bool Full() { return std::getenv("AFT_CUDA_FULL") != nullptr; }

// Decodes two sequences, the second `delay` steps behind the first, in slots 2 and 0 of 3 with a
// padding row between them, and compares results and states all along.
void ExpectDecodes(TestRandom& random, const Layer& layer, const std::string& keys, int64_t tokens,
                   Storage storage = {}, int64_t delay = 3) {
  SCOPED_TRACE(layer.Name() + ", keys " + keys);
  Runner runner(random, layer, 3, storage);
  const int64_t width = 3 * layer.hid;
  const std::vector<float> padding = std::vector<float>(static_cast<size_t>(width), kNan);
  const std::vector<float> texts[] = {runner.Input(random, keys, tokens),
                                      runner.Input(random, keys, tokens)};
  const int32_t slots[] = {2, 0};
  std::vector<float> y[2];
  for (int64_t step = 0; step < tokens + delay; ++step) {
    std::vector<Row> rows;
    std::vector<int> sequences;
    for (int i = 0; i < 2; ++i) {
      const int64_t t = step - i * delay;
      if (t < 0 || t >= tokens) continue;
      if (!rows.empty()) {
        rows.push_back({-1, t, padding});
        sequences.push_back(-1);
      }
      rows.push_back({slots[i], t, RowOf(texts[i], width, t)});
      sequences.push_back(i);
    }
    const std::vector<float> out = runner.Step(rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      const std::vector<float> part = RowOf(out, layer.hid, static_cast<int64_t>(r));
      if (sequences[r] < 0) {
        EXPECT_EQ(part, std::vector<float>(part.size(), 0.0F));
      } else {
        y[sequences[r]].insert(y[sequences[r]].end(), part.begin(), part.end());
      }
    }
    runner.StepOnCpu(rows);
    if (step % 7 == 0 || step + 1 == tokens) {
      runner.ExpectStatesOfCpu(step < delay ? std::vector<int32_t>{2} : std::vector<int32_t>{2, 0});
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
  }
  for (int i = 0; i < 2; ++i) ExpectNear(y[i], runner.Reference(texts[i]), storage.out);
  const std::vector<float> untouched = runner.State(1);
  EXPECT_TRUE(
      std::all_of(untouched.begin(), untouched.end(), [](float x) { return std::isnan(x); }));
}

TEST(AftStepTest, DecodesEveryWindow) {
  TestRandom random;
  for (const int64_t window : {0, 1, 2, 7, 31, 32, 33, 65, 100}) {
    ExpectDecodes(random, {.hid = 36, .window = window}, "n1", window + 20);
    if (window > 1) {
      ExpectDecodes(random, {.hid = 36, .window = window, .ring = Number::kBf16}, "n10",
                    window + 20);
    }
  }
}

TEST(AftStepTest, DecodesEveryWidth) {
  TestRandom random;
  for (const int64_t hid : {1, 8, 33, 64, 100, 192, 512}) {
    ExpectDecodes(random, {.hid = hid, .window = 32}, "n1", 40);
    ExpectDecodes(random, {.hid = hid, .window = 9, .ring = Number::kBf16}, "n1", 20);
    ExpectDecodes(random, {.hid = hid, .window = 0}, "n1", 10);
  }
}

TEST(AftStepTest, AddsEveryTokenOnceWithPrefixRestart) {
  TestRandom random;
  for (const int64_t window : {0, 1, 7, 32}) {
    for (const int64_t block : {std::max<int64_t>(window, 1), window + 5}) {
      for (const Number ring : {Number::kFp32, Number::kBf16}) {
        ExpectDecodes(random, {.hid = 33, .window = window, .ring = ring, .prefix_block = block},
                      "n1", 4 * block + 9);
      }
    }
  }
}

TEST(AftStepTest, BiasesByPositionEndWithTheLastRow) {
  TestRandom random;
  for (const int64_t window : {1, 7, 33}) {
    ExpectDecodes(random, {.hid = 36, .window = window, .bias_rows = 25}, "n1", 60);
  }
  ExpectDecodes(random, {.hid = 36, .window = 40, .bias_rows = 40}, "n1", 40);  // AFT-full
}

TEST(AftStepTest, WideBiasesAreNormalisedASecondTime) {
  TestRandom random;
  for (const int64_t window : {1, 2, 33, 100}) {
    for (const double spread : {5.0, 20.0, 60.0}) {
      for (const std::string keys : {"n1", "u100", "spike"}) {
        ExpectDecodes(random, {.hid = 33, .window = window, .spread = spread}, keys, window + 20);
      }
    }
  }
}

TEST(AftStepTest, ExtremeKeys) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    for (const int64_t window : {0, 1, 7, 32}) {
      const Number ring = window == 7 ? Number::kBf16 : Number::kFp32;
      ExpectDecodes(random, {.hid = 36, .window = window, .ring = ring}, keys, 70);
    }
    ExpectDecodes(random, {.hid = 36, .window = 7, .prefix_block = 8}, keys, 40);
  }
}

TEST(AftStepTest, EveryStorageOfInputsAndOutputs) {
  TestRandom random;
  for (const Number in : {Number::kFp32, Number::kBf16}) {
    for (const Number out : {Number::kFp32, Number::kBf16, Number::kFp16}) {
      for (const bool padded : {false, true}) {
        for (const int64_t hid : {33, 36, 64}) {
          for (const Number ring : {Number::kFp32, Number::kBf16}) {
            ExpectDecodes(random, {.hid = hid, .window = 12, .ring = ring}, "n1", 25,
                          {in, out, padded});
          }
          ExpectDecodes(random, {.hid = hid}, "n1", 9, {in, out, padded});
        }
      }
    }
  }
}

// One step of every sequence of a batch, in its own slot at its own position.
TEST(AftStepTest, NeighboursChangeNoBit) {
  TestRandom random;
  for (const Layer& layer : {Layer{.hid = 100, .window = 32}, Layer{.hid = 33, .window = 0},
                             Layer{.hid = 36, .window = 20, .ring = Number::kBf16},
                             Layer{.hid = 36, .window = 7, .prefix_block = 11}}) {
    SCOPED_TRACE(layer.Name());
    constexpr int32_t kSlots = 7;
    Runner runner(random, layer, kSlots);
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const int64_t length = slot * 9 % 40;
      const std::vector<float> text = runner.Input(random, "n1", length);
      for (int64_t t = 0; t < length; ++t) runner.Step({{slot, t, RowOf(text, 3 * layer.hid, t)}});
    }
    const std::vector<float> before = runner.states();
    std::vector<Row> rows;
    for (const int32_t slot : {5, 0, 3, 6, 1, 2, 4}) {
      rows.push_back({slot, slot * 9 % 40, runner.Input(random, "n1", 1)});
    }
    const std::vector<float> together = runner.Step(rows);
    const std::vector<float> after = runner.states();
    std::vector<float> alone;
    runner.SetStates(before);
    for (size_t r = rows.size(); r-- > 0;) {
      const std::vector<float> y = runner.Step({rows[r]});
      alone.insert(alone.begin(), y.begin(), y.end());
    }
    EXPECT_TRUE(SameBits(together, alone));
    EXPECT_TRUE(SameBits(after, runner.states()));
  }
}

TEST(AftStepTest, NothingOfASlotsLastOwnerRemains) {
  TestRandom random;
  for (const Layer& layer :
       {Layer{.hid = 36, .window = 9}, Layer{.hid = 36, .window = 0, .prefix_block = 4},
        Layer{.hid = 33, .window = 1}, Layer{.hid = 36, .window = 5, .ring = Number::kBf16}}) {
    SCOPED_TRACE(layer.Name());
    Runner runner(random, layer, 2);
    const std::vector<float> first = runner.Input(random, "const+1e4", 30);
    const std::vector<float> second = runner.Input(random, "n1", 12);
    for (int64_t t = 0; t < 30; ++t) runner.Step({{1, t, RowOf(first, 3 * layer.hid, t)}});
    for (int64_t t = 0; t < 12; ++t) {
      const std::vector<float> token = RowOf(second, 3 * layer.hid, t);
      const std::vector<float> y = runner.Step({{1, t, token}, {0, t, token}});
      EXPECT_EQ(RowOf(y, layer.hid, 0), RowOf(y, layer.hid, 1)) << t;
    }
  }
}

// What is not finite stays in its channel and its sequence.
TEST(AftStepTest, NanAndInfinityStayInTheirChannel) {
  TestRandom random;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t window : {0, 1, 9, 40}) {
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      for (const int64_t part : {0, 1, 2}) {  // query, key, value
        const Layer layer{.hid = 36, .window = window};
        SCOPED_TRACE(layer.Name());
        Runner runner(random, layer, 4);  // slots 2 and 3: without it
        const std::vector<float> text = runner.Input(random, "n1", 60);
        for (int64_t t = 0; t < 60; ++t) {
          const std::vector<float> token = RowOf(text, 3 * layer.hid, t);
          const std::vector<float> good = runner.Step({{2, t, token}, {3, t, token}});
          std::vector<float> broken = token;
          if (t == 5) broken[static_cast<size_t>(part * layer.hid + 17)] = bad;
          std::vector<float> y = runner.Step({{0, t, broken}, {1, t, token}});
          const bool spoilt = part > 0 && bad != -kInfinity && t >= 5;
          ASSERT_TRUE(!spoilt || !std::isfinite(y[17])) << "token " << t;
          y[17] = good[17];
          ASSERT_TRUE(SameBits(y, good)) << "token " << t;
        }
      }
    }
  }
}

TEST(AftStepTest, ClosedAndOpenGates) {
  TestRandom random;
  const Layer layer{.hid = 36, .window = 7};
  Runner runner(random, layer, 1);
  std::vector<float> text = runner.Input(random, "n1", 20);
  for (int64_t t = 0; t < 20; ++t) {
    for (int64_t c = 0; c < layer.hid; ++c) {
      text[static_cast<size_t>(t * 3 * layer.hid + c)] = c % 2 == 0 ? 1e4F : -1e4F;
    }
  }
  std::vector<float> y;
  for (int64_t t = 0; t < 20; ++t) {
    const std::vector<float> row = runner.Step({{0, t, RowOf(text, 3 * layer.hid, t)}});
    y.insert(y.end(), row.begin(), row.end());
  }
  ExpectNear(y, runner.Reference(text), Number::kFp32);
}

TEST(AftStepTest, RefusesWhatItCannotDo) {
  const kernels::cuda::In in;
  const kernels::cuda::Out out;
  kernels::cuda::AftModel model;
  model.hid = 8;
  EXPECT_EQ(kernels::cuda::AftStep(model, {}, in, {}, {}, out, nullptr), 0);  // no rows
  model.causal = false;
  EXPECT_NE(kernels::cuda::AftStep(model, {}, in, {}, {}, out, nullptr), 0);
}

TEST(AftStepTest, TheWholeMatrix) {
  if (!Full()) GTEST_SKIP() << "AFT_CUDA_FULL is not set";
  TestRandom random;
  for (const int64_t window : {0, 1, 2, 7, 31, 32, 33, 65, 100}) {
    for (const int64_t hid : {1, 33, 64, 512}) {
      for (const Number ring : {Number::kFp32, Number::kBf16}) {
        for (const double spread : {1.0, 20.0}) {
          for (const std::string& keys : kKeySets) {
            ExpectDecodes(random, {.hid = hid, .window = window, .ring = ring, .spread = spread},
                          keys, window + 40);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft::aft_step_test
