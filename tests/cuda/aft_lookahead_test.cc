// AftStep with block look-ahead must give the same results with any ages of the sums.

#include <string>

#include "gtest/gtest.h"
#include "model/kernels/cuda/aft/aft.h"
#include "tests/cuda/layer.h"
#include "tests/support/same_bits.h"

namespace aft {
namespace {

// Chooses the ages of one sequence's look-ahead sums (kernels::cuda::AftLookahead).
class Ages {
 public:
  // Sums are computed again after `rows` tokens. With `random`, some steps compute them earlier and
  // some do not use them.
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

// Decodes three sequences at different positions and checks their results and states.
void ExpectSameResults(TestRandom& random, const MixerCase& shape, int64_t tokens,
                       const std::string& keys = "n1", bool mixed = false, Storage storage = {}) {
  constexpr int kSequences = 3;
  DeviceLayer layer(random, shape, kSequences + 1, storage);
  const int64_t ahead = layer.gpu().mixer().lookahead_rows();
  ASSERT_GT(ahead, 0);
  SCOPED_TRACE(layer.Name() + ", keys " + keys + ", look-ahead " + std::to_string(ahead) +
               (mixed ? ", mixed ages" : ""));
  const int32_t slots[] = {2, 0, 3};
  Matrix texts[kSequences];
  Matrix y[kSequences];
  std::vector<Ages> ages(kSequences, Ages(ahead, mixed ? &random : nullptr));
  for (Matrix& text : texts) text = layer.Input(random, tokens, keys);
  for (int64_t step = 0; step < tokens + 4; ++step) {
    std::vector<MixerChunk> chunks = {{-1, 0, Matrix(static_cast<size_t>(layer.packed_width()))}};
    std::vector<int32_t> chunk_ages = {0};
    std::vector<int> sequences;
    for (int i = 0; i < kSequences; ++i) {
      const int64_t t = step - 2 * i;
      if (t < 0 || t >= tokens) continue;
      chunks.push_back(layer.Chunk(texts[i], t, t + 1, slots[i]));
      chunk_ages.push_back(ages[static_cast<size_t>(i)].Next(t));
      sequences.push_back(i);
    }
    const std::vector<Matrix> out = layer.Step(chunks, chunk_ages);
    EXPECT_EQ(out[0], Matrix(out[0].size(), 0.0F));
    for (size_t r = 0; r < sequences.size(); ++r) {
      y[sequences[r]].insert(y[sequences[r]].end(), out[r + 1].begin(), out[r + 1].end());
    }
    chunks.erase(chunks.begin());
    layer.cpu().Run(chunks);
    if (step % 9 == 8) {
      for (const int32_t slot : slots) layer.ExpectStateOfCpu(slot);
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
  }
  for (int i = 0; i < kSequences; ++i) layer.ExpectNear(y[i], texts[i]);
}

TEST(AftLookaheadTest, GivesTheSameResultsForEveryWindow) {
  TestRandom random;
  for (const int64_t window : {16, 17, 32, 33, 65, 128, 140}) {
    const MixerCase shape = Aft(36, {.window = window});
    for (const MixerCase& ring : {shape, WithBf16Ring(shape)}) {
      ExpectSameResults(random, ring, window + 20);
    }
  }
}

TEST(AftLookaheadTest, GivesTheSameResultsForAnyAges) {
  TestRandom random;
  for (const bool mixed : {false, true}) {
    ExpectSameResults(random, Aft(36, {.window = 16}), 50, "n1", mixed);
    ExpectSameResults(random, WithBf16Ring(Aft(36, {.window = 40}, 20)), 60, "n1", mixed);
    ExpectSameResults(random, Aft(36, {.window = 128}), 150, "n1", mixed);
  }
}

TEST(AftLookaheadTest, WideBiasesAndExtremeKeys) {
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    for (const double spread : {1.0, 5.0, 20.0}) {
      ExpectSameResults(random, Aft(36, {.window = 20}, spread), 50, keys, true);
    }
    ExpectSameResults(random, Aft(36, {.window = 130}, 20), 150, keys);
  }
}

TEST(AftLookaheadTest, EveryWidthAndStorage) {
  TestRandom random;
  for (const int64_t hid : {4, 8, 64, 100, 192, 512}) {
    ExpectSameResults(random, Aft(hid, {.window = 32}), 40);
  }
  for (const Number out : {Number::kFp32, Number::kBf16, Number::kFp16}) {
    for (const double spread : {1.0, 20.0}) {
      const MixerCase shape = Aft(40, {.window = 18}, spread);
      for (const MixerCase& ring : {shape, WithBf16Ring(shape)}) {
        ExpectSameResults(random, ring, 40, "n1", true, {out, true});
      }
    }
  }
}

TEST(AftLookaheadTest, BiasesByPositionAreThoseOfTheLaterToken) {
  TestRandom random;
  ExpectSameResults(random, Aft(36, {.window = 18, .band_rows = 30}), 60);
  ExpectSameResults(random, Aft(36, {.window = 64, .band_rows = 64}), 64);  // AFT-full
  ExpectSameResults(random, Aft(36, {.window = 64, .band_rows = 64}, 20), 64);
}

// Rows with different ages give the same bits in one batch as in batches of one row.
TEST(AftLookaheadTest, NeighboursChangeNoBit) {
  TestRandom random;
  for (const double spread : {1.0, 20.0}) {
    DeviceLayer layer(random, Aft(100, {.window = 20}, spread), 4);
    const Matrix texts[] = {layer.Input(random, 40), layer.Input(random, 40)};
    // Slots 0 and 1 share a batch. Slots 2 and 3 run alone with the same tokens and ages.
    Ages ages[] = {{8, nullptr}, {8, &random}};
    for (int64_t t = 0; t < 40; ++t) {
      std::vector<MixerChunk> chunks;
      std::vector<int32_t> both;
      for (const int32_t slot : {0, 1}) {
        chunks.push_back(layer.Chunk(texts[slot], t, t + 1, slot));
        both.push_back(ages[slot].Next(t));
      }
      const std::vector<Matrix> y = layer.Step(chunks, both);
      for (const int32_t slot : {0, 1}) {
        MixerChunk alone = chunks[static_cast<size_t>(slot)];
        alone.slot += 2;
        ASSERT_TRUE(SameBits(layer.Step({alone}, {both[static_cast<size_t>(slot)]})[0],
                             y[static_cast<size_t>(slot)]))
            << t;
        ASSERT_TRUE(SameBits(layer.State(slot), layer.State(slot + 2))) << t;
        ASSERT_TRUE(SameBits(layer.gpu().SlotScratch(slot), layer.gpu().SlotScratch(slot + 2)))
            << t;
      }
    }
  }
}

TEST(AftLookaheadTest, AStepWithoutLookaheadLeavesTheSumsUnchanged) {
  TestRandom random;
  DeviceLayer layer(random, Aft(36, {.window = 16}));
  const Matrix text = layer.Input(random, 20);
  const auto step = [&](int64_t t, int64_t age) {
    layer.Step({layer.Chunk(text, t, t + 1)}, {static_cast<int32_t>(age)});
  };
  const Matrix untouched = layer.gpu().SlotScratch(0);
  for (int64_t t = 0; t < 10; ++t) step(t, -1);
  EXPECT_TRUE(SameBits(layer.gpu().SlotScratch(0), untouched));
  step(10, 0);
  const Matrix sums = layer.gpu().SlotScratch(0);
  EXPECT_FALSE(SameBits(sums, untouched));
  for (int64_t t = 11; t < 18; ++t) step(t, t - 10);
  EXPECT_TRUE(SameBits(layer.gpu().SlotScratch(0), sums));
}

using kernels::cuda::AftLookaheadFloats;
using kernels::cuda::AftLookaheadRows;
using kernels::cuda::AftModel;

TEST(AftLookaheadTest, AMixerWithoutLookaheadKeepsOnlyItsState) {
  TestRandom random;
  for (const MixerCase& shape : {Aft(36, {.window = 15}), Aft(33, {.window = 64}),
                                 Aft(36, {.window = 32, .prefix_block = 32})}) {
    DeviceLayer layer(random, shape);
    EXPECT_EQ(layer.gpu().mixer().lookahead_rows(), 0) << layer.Name();
    EXPECT_EQ(layer.gpu().mixer().slot_scratch_floats(), 0) << layer.Name();
  }
}

TEST(AftLookaheadTest, TheSumsTakeNoMoreMemoryThanTheState) {
  EXPECT_EQ(AftLookaheadRows({.hid = 512}), 0);
  EXPECT_EQ(AftLookaheadRows({.hid = 512, .window = 15}), 0);
  EXPECT_EQ(AftLookaheadRows({.hid = 512, .window = 2048}), 0);
  EXPECT_EQ(AftLookaheadRows({.hid = 33, .window = 64}), 0);
  EXPECT_EQ(AftLookaheadRows({.hid = 512, .window = 64, .prefix_block = 64}), 0);
  for (const bool wide : {false, true}) {
    for (const int64_t window : {16, 32, 127, 128, 256, 512}) {
      const AftModel model = {.hid = 512, .window = window, .wide = wide};
      const int64_t rows = AftLookaheadRows(model);
      EXPECT_EQ(rows, window < 128 ? 8 : 16);
      EXPECT_LE(AftLookaheadFloats(model, rows), model.layout().Floats());
    }
  }
}

TEST(AftLookaheadTest, RefusesWhatItCannotDo) {
  const DeviceArray<int32_t> age(std::vector<int32_t>{0});
  const DeviceArray<float> sums(4096);
  kernels::cuda::StepRows rows;
  rows.age = age.get();
  const auto step = [&](const AftModel& model, int64_t ahead) {
    return kernels::cuda::AftStep(model, rows, {}, {}, {ahead, sums.get(), 4096}, {}, nullptr);
  };
  EXPECT_EQ(step({.hid = 64, .window = 32}, 8), 0);
  EXPECT_NE(step({.hid = 33, .window = 32}, 8), 0);   // not whole vectors
  EXPECT_NE(step({.hid = 64, .window = 4}, 8), 0);    // the ring forgets a token of the block
  EXPECT_NE(step({.hid = 64, .window = 32}, 17), 0);  // too much shared memory
  EXPECT_NE(step({.hid = 64, .window = 32, .prefix_block = 64}, 8), 0);
  rows.age = nullptr;
  EXPECT_NE(step({.hid = 64, .window = 32}, 8), 0);
}

}  // namespace
}  // namespace aft
