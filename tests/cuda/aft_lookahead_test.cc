// AftStep with block look-ahead: the same results, whatever the ages.

#include <algorithm>
#include <string>

#include "gtest/gtest.h"
#include "tests/cuda/aft_step_harness.h"

namespace aft::aft_step_test {
namespace {

constexpr double kTolerance = 5e-6;

// The ages of one sequence.
class Ages {
 public:
  // With `random`, sums are made again, and left alone, now and then.
  Ages(int64_t rows, TestRandom* random) : rows_(rows), random_(random) {}

  int32_t Next(int64_t t) {
    const bool again = random_ != nullptr && random_->Below(5) == 0;
    if (random_ != nullptr && random_->Below(4) == 0) return -1;
    if (again || made_at_ < 0 || t - made_at_ >= rows_) made_at_ = t;
    return static_cast<int32_t>(t - made_at_);
  }

 private:
  const int64_t rows_;
  TestRandom* const random_;
  int64_t made_at_ = -1;
};

// Decodes three sequences at different positions.
void ExpectSameResults(TestRandom& random, const Layer& layer, int64_t ahead, int64_t tokens,
                       const std::string& keys = "n1", bool mixed = false, Storage storage = {}) {
  SCOPED_TRACE(layer.Name() + ", keys " + keys + ", look-ahead " + std::to_string(ahead) +
               (mixed ? ", mixed ages" : ""));
  constexpr int kSequences = 3;
  Runner runner(random, layer, kSequences + 1, storage, ahead);
  const int64_t width = 3 * layer.hid;
  const int32_t slots[] = {2, 0, 3};
  std::vector<float> texts[kSequences];
  std::vector<float> y[kSequences];
  std::vector<Ages> ages(kSequences, Ages(ahead, mixed ? &random : nullptr));
  for (std::vector<float>& text : texts) text = runner.Input(random, keys, tokens);
  for (int64_t step = 0; step < tokens + 4; ++step) {
    std::vector<Row> rows;
    std::vector<int> sequences;
    for (int i = 0; i < kSequences; ++i) {
      const int64_t t = step - 2 * i;
      if (t < 0 || t >= tokens) continue;
      const auto at = static_cast<size_t>(i);
      rows.push_back({slots[i], t, RowOf(texts[i], width, t), ages[at].Next(t)});
      sequences.push_back(i);
    }
    rows.push_back({-1, 0, std::vector<float>(static_cast<size_t>(width)), 0});
    const std::vector<float> out = runner.Step(rows);
    for (size_t r = 0; r < sequences.size(); ++r) {
      const std::vector<float> part = RowOf(out, layer.hid, static_cast<int64_t>(r));
      y[sequences[r]].insert(y[sequences[r]].end(), part.begin(), part.end());
    }
    EXPECT_EQ(RowOf(out, layer.hid, static_cast<int64_t>(sequences.size())),
              std::vector<float>(static_cast<size_t>(layer.hid), 0.0F));
    runner.StepOnCpu(rows);
    if (step % 9 == 8) runner.ExpectStatesOfCpu({2, 0, 3});
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
  }
  for (int i = 0; i < kSequences; ++i) {
    ExpectNear(y[i], runner.Reference(texts[i]), storage.out, kTolerance);
  }
}

TEST(AftLookaheadTest, GivesTheSameResultsForEveryWindow) {
  TestRandom random;
  for (const int64_t window : {2, 3, 9, 16, 32, 33, 65, 128, 140}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      const Layer layer{.hid = 36, .window = window, .ring = ring};
      ExpectSameResults(random, layer, std::min<int64_t>(window, 8), window + 20);
    }
  }
}

TEST(AftLookaheadTest, AnyNumberOfRowsAndAges) {
  TestRandom random;
  for (const int64_t ahead : {1, 2, 3, 8, 13, 16}) {
    for (const bool mixed : {false, true}) {
      ExpectSameResults(random, {.hid = 36, .window = 16}, ahead, 50, "n1", mixed);
      ExpectSameResults(random, {.hid = 36, .window = 40, .ring = Number::kBf16, .spread = 20.0},
                        ahead, 60, "n1", mixed);
    }
  }
}

TEST(AftLookaheadTest, WideBiasesAndExtremeKeys) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    for (const double spread : {1.0, 5.0, 20.0}) {
      ExpectSameResults(random, {.hid = 36, .window = 20, .spread = spread}, 8, 50, keys, true);
    }
    ExpectSameResults(random, {.hid = 36, .window = 130, .spread = 20.0}, 16, 150, keys);
  }
}

TEST(AftLookaheadTest, EveryWidthAndStorage) {
  TestRandom random;
  for (const int64_t hid : {4, 8, 64, 100, 192, 512}) {
    ExpectSameResults(random, {.hid = hid, .window = 32}, 8, 40);
  }
  for (const Number out : {Number::kFp32, Number::kBf16, Number::kFp16}) {
    for (const Number ring : {Number::kFp32, Number::kBf16}) {
      for (const double spread : {1.0, 20.0}) {
        const Layer layer{.hid = 40, .window = 18, .ring = ring, .spread = spread};
        ExpectSameResults(random, layer, 8, 40, "n1", true, {Number::kBf16, out, true});
      }
    }
  }
}

TEST(AftLookaheadTest, BiasesByPositionAreThoseOfTheLaterRow) {
  TestRandom random;
  ExpectSameResults(random, {.hid = 36, .window = 18, .bias_rows = 30}, 8, 60);
  ExpectSameResults(random, {.hid = 36, .window = 64, .bias_rows = 64}, 16, 64);  // AFT-full
  ExpectSameResults(random, {.hid = 36, .window = 64, .bias_rows = 64, .spread = 20.0}, 16, 64);
}

// Bits too: the rows of a batch with different ages, together and one by one.
TEST(AftLookaheadTest, NeighboursChangeNoBit) {
  TestRandom random;
  for (const double spread : {1.0, 20.0}) {
    const Layer layer{.hid = 100, .window = 20, .spread = spread};
    Runner together(random, layer, 4, {}, 8);
    std::vector<float> texts[4];
    for (std::vector<float>& text : texts) text = together.Input(random, "n1", 40);
    // Slots 0 and 1 in one batch with each other, 2 and 3 alone with the same tokens and ages.
    Ages ages[] = {{8, nullptr}, {8, &random}};
    for (int64_t t = 0; t < 40; ++t) {
      std::vector<Row> rows;
      for (const int32_t slot : {0, 1}) {
        rows.push_back({slot, t, RowOf(texts[slot], 300, t), ages[slot].Next(t)});
      }
      const std::vector<float> y = together.Step(rows);
      for (const int32_t slot : {0, 1}) {
        Row alone = rows[static_cast<size_t>(slot)];
        alone.slot += 2;
        ASSERT_TRUE(SameBits(together.Step({alone}), RowOf(y, 100, slot))) << t;
        ASSERT_TRUE(SameBits(together.State(slot), together.State(slot + 2))) << t;
        ASSERT_TRUE(SameBits(together.Sums(slot), together.Sums(slot + 2))) << t;
      }
    }
  }
}

TEST(AftLookaheadTest, AStepWithoutLeavesTheSumsAlone) {
  TestRandom random;
  const Layer layer{.hid = 36, .window = 16};
  Runner runner(random, layer, 1, {}, 8);
  const std::vector<float> text = runner.Input(random, "n1", 20);
  const std::vector<float> untouched = runner.Sums(0);
  for (int64_t t = 0; t < 10; ++t) runner.Step({{0, t, RowOf(text, 108, t), -1}});
  EXPECT_TRUE(SameBits(runner.Sums(0), untouched));
  runner.Step({{0, 10, RowOf(text, 108, 10), 0}});
  const std::vector<float> sums = runner.Sums(0);
  EXPECT_FALSE(SameBits(sums, untouched));
  for (int64_t t = 11; t < 18; ++t) {
    runner.Step({{0, t, RowOf(text, 108, t), static_cast<int32_t>(t - 10)}});
  }
  EXPECT_TRUE(SameBits(runner.Sums(0), sums));
}

kernels::cuda::AftModel Model(int64_t hid, int64_t window, bool wide = false) {
  kernels::cuda::AftModel model;
  model.hid = hid;
  model.window = window;
  model.wide = wide;
  return model;
}

TEST(AftLookaheadTest, RowsAreFewBesideTheRing) {
  EXPECT_EQ(kernels::cuda::AftLookaheadRows(Model(512, 0)), 0);
  EXPECT_EQ(kernels::cuda::AftLookaheadRows(Model(512, 15)), 0);
  EXPECT_EQ(kernels::cuda::AftLookaheadRows(Model(33, 64)), 0);
  kernels::cuda::AftModel blocks = Model(512, 64);
  blocks.prefix_block = 64;
  EXPECT_EQ(kernels::cuda::AftLookaheadRows(blocks), 0);
  for (const bool wide : {false, true}) {
    for (const int64_t window : {16, 32, 127, 128, 256, 2048}) {
      const kernels::cuda::AftModel model = Model(512, window, wide);
      const int64_t rows = kernels::cuda::AftLookaheadRows(model);
      EXPECT_EQ(rows, window < 128 ? 8 : 16);
      EXPECT_LE(kernels::cuda::AftLookaheadFloats(model, rows), model.layout().Floats());
    }
  }
}

TEST(AftLookaheadTest, RefusesWhatItCannotDo) {
  const DeviceArray<int32_t> age(std::vector<int32_t>{0});
  const DeviceArray<float> sums(4096);
  kernels::cuda::StepRows rows;
  rows.age = age.get();
  const auto step = [&](const kernels::cuda::AftModel& model, int64_t ahead) {
    return kernels::cuda::AftStep(model, rows, {}, {}, {ahead, sums.get(), 4096}, {}, nullptr);
  };
  EXPECT_EQ(step(Model(64, 32), 8), 0);
  EXPECT_NE(step(Model(33, 32), 8), 0);   // not whole vectors
  EXPECT_NE(step(Model(64, 4), 8), 0);    // the ring forgets a token of the block
  EXPECT_NE(step(Model(64, 32), 17), 0);  // shared memory
  kernels::cuda::AftModel blocks = Model(64, 32);
  blocks.prefix_block = 64;
  EXPECT_NE(step(blocks, 8), 0);
  rows.age = nullptr;
  EXPECT_NE(step(Model(64, 32), 8), 0);
}

}  // namespace
}  // namespace aft::aft_step_test
