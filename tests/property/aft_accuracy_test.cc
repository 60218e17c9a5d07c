// The AFT kernel against float64, on every instruction set of this machine.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/property/aft_harness.h"
#include "tests/property/random_inputs.h"

namespace aft {
namespace {

class AftAccuracyTest : public EveryInstructionSet {
 protected:
  // The bounds of aft-operators.md section 7; it measured 3e-6 at worst.
  void ExpectClose(const std::vector<float>& y, const std::vector<double>& reference,
                   const std::string& what, double max_allowed = 1e-5, double rms_allowed = 1e-6) {
    ASSERT_EQ(y.size(), reference.size());
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double difference = std::abs(y[i] - reference[i]);
      ASSERT_TRUE(difference <= max_allowed) << what << ": error " << difference;  // NaN fails
      error += difference * difference;
      norm += reference[i] * reference[i];
    }
    EXPECT_TRUE(std::sqrt(error / norm) <= rms_allowed) << what << ": " << std::sqrt(error / norm);
  }

  TestRandom random_;
};

TEST_P(AftAccuracyTest, EqualsFloat64OnEveryKeySetAndBias) {
  constexpr int64_t kTokens = 150;
  constexpr int64_t kHid = 5;
  for (const std::string& keys : kKeySets) {
    for (const double w : {0.0, 1.0, 5.0, 20.0}) {
      for (const int64_t window : {0, 1, 2, 31, 32, 33, 160}) {
        for (const int64_t block : {int64_t{0}, std::max<int64_t>(window, 1), int64_t{64}}) {
          if (block != 0 && block < window) continue;
          if (window == 0 && w != 0) continue;
          const AftLayer layer = {kHid, window, block, 1, random_.Normals(window, w)};
          const std::vector<float> qkv = RandomQkv(random_, keys, kTokens, kHid);
          ExpectClose(AftRunner(layer, 1).RunCut(qkv, {100, 1, 1, 7}), AftReference(layer, qkv),
                      testing::PrintToString(std::tuple(keys, w, window, block)));
        }
      }
    }
  }
}

TEST_P(AftAccuracyTest, EqualsFloat64AtEveryWidth) {
  constexpr int64_t kTokens = 70;
  for (const int64_t hid : {1, 8, 33, 64, 100, 192}) {
    for (const int64_t window : {0, 32}) {
      const AftLayer layer = {hid, window, 0, 1, random_.Normals(window)};
      const std::vector<float> qkv = RandomQkv(random_, "n10", kTokens, hid);
      ExpectClose(AftRunner(layer, 1).RunCut(qkv, {kTokens}), AftReference(layer, qkv),
                  testing::PrintToString(std::pair(hid, window)));
    }
  }
}

TEST_P(AftAccuracyTest, BandWithOneRowPerPositionEqualsFloat64) {
  constexpr int64_t kTokens = 90;
  for (const int64_t block : {0, 33}) {
    const AftLayer layer = {20, 33, block, kTokens, random_.Normals(kTokens * 33, 3)};
    const std::vector<float> qkv = RandomQkv(random_, "n1", kTokens, 20);
    ExpectClose(AftRunner(layer, 1).RunCut(qkv, {40, 1, 3}), AftReference(layer, qkv), "");
  }
}

TEST_P(AftAccuracyTest, LongRunKeepsItsAccuracy) {
  // O(T) in float64: the reference of the reference, the plain running sums.
  constexpr int64_t kTokens = 20'000;
  constexpr int64_t kHid = 4;
  const AftLayer layer = {kHid, 0, 0, 1, {}};
  std::vector<float> qkv = RandomQkv(random_, "n1", kTokens, kHid);
  std::vector<double> reference;
  std::vector<double> num(kHid, 0.0);
  std::vector<double> den(kHid, 0.0);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < kHid; ++c) {
      float* token = &qkv[static_cast<size_t>(t * 3 * kHid + c)];
      token[2 * kHid] += 3;
      const double e = std::exp(double{token[kHid]});
      num[static_cast<size_t>(c)] += e * token[2 * kHid];
      den[static_cast<size_t>(c)] += e;
      reference.push_back(num[static_cast<size_t>(c)] / den[static_cast<size_t>(c)] /
                          (1 + std::exp(-double{token[0]})));
    }
  }
  ExpectClose(AftRunner(layer, 1).RunCut(qkv, {kTokens}), reference, "simple", 5e-5, 1e-5);
  // A window moves tokens late into the sums, and with a zero band changes nothing else.
  const AftLayer local = {kHid, 32, 0, 1, std::vector<float>(32, 0.0F)};
  ExpectClose(AftRunner(local, 1).RunCut(qkv, {1000, 1}), reference, "local", 5e-5, 1e-5);
}

TEST_P(AftAccuracyTest, OutputsStayWithinTheValues) {
  for (const std::string& keys : kKeySets) {
    const AftLayer layer = {33, 31, 0, 1, random_.Normals(31, 5)};
    std::vector<float> qkv = RandomQkv(random_, keys, 120, 33);
    const std::vector<float> y = AftRunner(layer, 1).RunCut(qkv, {50, 1});
    for (int64_t c = 0; c < 33; ++c) {
      float bound = 0;
      for (int64_t t = 0; t < 120; ++t) {
        bound = std::max(bound, std::abs(qkv[static_cast<size_t>((t * 3 + 2) * 33 + c)]));
        EXPECT_LE(std::abs(y[static_cast<size_t>(t * 33 + c)]), bound * (1 + 1e-6F)) << keys;
      }
    }
  }
}

TEST_P(AftAccuracyTest, ExtremeQueriesCloseAndOpenTheGate) {
  const AftLayer layer = {2, 2, 0, 1, {0.5F, -0.5F}};
  // Values of 1: what is left of the output is the gate.
  const std::vector<float> qkv = {-1e4F, 1e4F, 0, 0, 1, 1, -3e38F, 3e38F, 1e4F, -1e4F, 1, 1};
  const std::vector<float> y = AftRunner(layer, 1).RunCut(qkv, {1});
  EXPECT_NEAR(y[0], 0.0F, 1e-37F);
  EXPECT_FLOAT_EQ(y[1], 1.0F);
  EXPECT_NEAR(y[2], 0.0F, 1e-37F);
  EXPECT_FLOAT_EQ(y[3], 1.0F);
}

TEST_P(AftAccuracyTest, ConstantValuesComeOutGated) {
  const AftLayer layer = {8, 32, 64, 1, random_.Normals(32, 5)};
  std::vector<float> qkv = RandomQkv(random_, "u1e4", 200, 8);
  for (int64_t t = 0; t < 200; ++t) {
    for (int64_t c = 0; c < 8; ++c) qkv[static_cast<size_t>((t * 3 + 2) * 8 + c)] = -2.5F;
  }
  const std::vector<float> y = AftRunner(layer, 1).RunCut(qkv, {200});
  for (int64_t t = 0; t < 200; ++t) {
    for (int64_t c = 0; c < 8; ++c) {
      const double q = qkv[static_cast<size_t>(t * 24 + c)];
      EXPECT_NEAR(y[static_cast<size_t>(t * 8 + c)], -2.5 / (1 + std::exp(-q)), 3e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, AftAccuracyTest, testing::ValuesIn(InstructionSets()),
                         InstructionSetName);

}  // namespace
}  // namespace aft
