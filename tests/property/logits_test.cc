#include "model/kernels/logits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "model/sampling/philox.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/random_inputs.h"

namespace aft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

class LogitsTest : public EveryInstructionSet {
 protected:
  TestRandom random_;
};
AFT_EVERY_INSTRUCTION_SET(LogitsTest);

double Gumbel(const kernels::GumbelDraw& draw, size_t id) {
  const std::array<uint32_t, 4> words =
      Philox4x32({static_cast<uint32_t>(draw.output_index), 0U, static_cast<uint32_t>(id / 4),
                  static_cast<uint32_t>(draw.output_index >> 32)},
                 {static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32)});
  return -std::log(-std::log((words[id % 4] + 0.5) / 4294967296.0));
}

TEST_P(LogitsTest, EveryLogitIsMadeFiniteAndTheHighestFound) {
  for (const size_t count : {1U, 3U, 16U, 17U, 64U, 250U}) {
    for (size_t place = 0; place < count; ++place) {
      std::vector<float> logits = random_.Normals(static_cast<int64_t>(count), 3.0);
      const float highest = place % 2 == 0 ? 20.0F : kInfinity;
      logits[place] = highest;
      if (count > 2) {
        logits[(place + 1) % count] = -0.0F;
        logits[(place + 2) % count] = std::nanf("");
      }
      std::vector<float> values(count + 1, 77.0F);
      EXPECT_EQ(kernels::FiniteLogits(logits.data(), static_cast<int64_t>(count), values.data()),
                std::min(highest, kLargest));
      for (size_t i = 0; i < count; ++i) {
        const float expected =
            std::isnan(logits[i]) ? -kInfinity : std::min(logits[i], kLargest) + 0.0F;
        EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected))
            << i << " of " << count;
      }
      EXPECT_EQ(values[count], 77.0F);
    }
  }
  const float nothing[] = {-kInfinity, std::nanf("")};
  float values[2];
  EXPECT_EQ(kernels::FiniteLogits(nothing, 2, values), -kInfinity);
}

TEST_P(LogitsTest, TheNextThatIsLargeEnoughIsFound) {
  for (const int64_t count : {1, 15, 16, 17, 32, 67}) {
    const std::vector<float> values = random_.Normals(count, 1.0);
    for (const float least :
         {-kInfinity, values[0], values[static_cast<size_t>(count / 2)], 9.0F}) {
      for (int64_t first = 0; first <= count; ++first) {
        const auto expected = std::find_if(values.begin() + first, values.end(),
                                           [&](float value) { return value >= least; });
        EXPECT_EQ(kernels::NextAtLeast(values.data(), first, count, least),
                  expected - values.begin());
      }
    }
  }
}

TEST_P(LogitsTest, NoTokenScoresAboveItsBoundAndFewFarBelow) {
  for (const size_t count : {1U, 2U, 5U, 31U, 64U, 256U, 257U, 1003U}) {
    const std::vector<float> logits = random_.Normals(static_cast<int64_t>(count), 4.0);
    kernels::GumbelDraw draw;
    draw.seed = uint64_t{0x9E3779B97F4A7C15} * count;
    draw.output_index = (uint64_t{3} << 32) + count;
    draw.temperature = static_cast<float>(random_.Uniform(0.1, 3));
    draw.highest = *std::max_element(logits.begin(), logits.end());
    draw.lowest = logits[count / 2];
    std::vector<float> bounds(count + 1, 77.0F);
    const float largest =
        kernels::GumbelBounds(draw, logits.data(), static_cast<int64_t>(count), bounds.data());
    EXPECT_EQ(largest, *std::max_element(bounds.begin(), bounds.end() - 1));
    EXPECT_EQ(bounds[count], 77.0F);
    for (size_t i = 0; i < count; ++i) {
      if (logits[i] < draw.lowest) {
        EXPECT_EQ(bounds[i], -kInfinity);
        continue;
      }
      const double gumbel = Gumbel(draw, i);
      const double score = (double{logits[i]} - draw.highest) / draw.temperature + gumbel;
      if (score > -100) {
        EXPECT_GE(bounds[i], score - 1e-4) << i << " of " << count;
      }
      if (gumbel > 2) {
        EXPECT_LE(bounds[i], score + 0.13) << i << " of " << count;
      }
    }
  }
}

// The random words have all sizes, also those near both ends. Without these the test would not see
// a bound that is too low for the rarest draws.
TEST_P(LogitsTest, BoundsHoldForTheRarestDraws) {
  kernels::GumbelDraw draw;
  const std::vector<float> logits(4096, 0.0F);
  std::vector<float> bounds(logits.size());
  double highest = 0;
  for (draw.seed = 0; draw.seed < 40; ++draw.seed) {
    kernels::GumbelBounds(draw, logits.data(), 4096, bounds.data());
    for (size_t i = 0; i < logits.size(); ++i) {
      const double gumbel = Gumbel(draw, i);
      ASSERT_GE(bounds[i], gumbel - 1e-4);
      highest = std::max(highest, gumbel);
    }
  }
  EXPECT_GT(highest, 9);
}

}  // namespace
}  // namespace aft
