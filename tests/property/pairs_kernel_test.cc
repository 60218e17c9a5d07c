// Tests the AFT kernel for one query and a list of keys against float64, with keys and biases of
// any size.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/kernels/pairs/pairs.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/random_inputs.h"
#include "tests/support/close.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

class PairKernelTest : public EveryInstructionSet {};

TEST_P(PairKernelTest, MeansAreExactForKeysAndBiasesOfAnySize) {
  constexpr int64_t kHid = 75;  // whole groups of vectors, a vector, and single channels
  constexpr int64_t kKeys = 90;
  TestRandom random;
  for (const std::string& keys : kKeySets) {
    const std::vector<float> qkv = RandomQkv(random, keys, kKeys, kHid);
    for (const double spread : {0.0, 1.0, 1000.0}) {
      std::vector<int32_t> rows;
      for (int32_t row = 0; row < kKeys; ++row) {
        if (row % 3 != 1) rows.push_back(row);
      }
      const std::vector<float> biases = random.Normals(static_cast<int64_t>(rows.size()), spread);
      std::vector<float> y(kHid);
      kernels::PairAft(qkv.data() + kHid, qkv.data() + 2 * kHid, 3 * kHid, kHid, Number::kFp32,
                       {static_cast<int64_t>(rows.size()), rows.data(), biases.data()}, y.data());
      std::vector<double> want;
      for (int64_t c = 0; c < kHid; ++c) {
        const auto at = [&](size_t i, int64_t part) {
          return double{qkv[static_cast<size_t>((int64_t{rows[i]} * 3 + part) * kHid + c)]};
        };
        double max = -HUGE_VAL;
        for (size_t i = 0; i < rows.size(); ++i) max = std::max(max, at(i, 1) + double{biases[i]});
        double sum = 0;
        double mean = 0;
        for (size_t i = 0; i < rows.size(); ++i) {
          const double weight = std::exp(at(i, 1) + double{biases[i]} - max);
          sum += weight;
          mean += weight * at(i, 2);
        }
        want.push_back(mean / sum);
      }
      // With large biases, keys count that are far below the largest key; their difference to it is
      // rounded.
      EXPECT_TRUE(Close(y, want, spread > 1 ? tolerance::kKeysRounded : tolerance::kFp32Large))
          << keys << " " << spread;
    }
  }
}

AFT_EVERY_INSTRUCTION_SET(PairKernelTest);

}  // namespace
}  // namespace aft
