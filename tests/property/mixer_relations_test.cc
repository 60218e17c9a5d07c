// Tests refused tables, sizes of states, and long runs.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/property/mixer_harness.h"
#include "tests/support/close.h"

namespace aft {
namespace {

using Tables = std::map<std::string, std::vector<float>>;

class MixerRelationsTest : public testing::Test {
 protected:
  TestRandom random_;
};

TEST_F(MixerRelationsTest, ABf16StateOfOddSizeEndsOnAWholeFloat) {
  const MixerCase odd = {"", {.window = 4, .ring = Number::kBf16}, 23};
  const StateSpec spec = TestMixer(odd, random_).state_spec();
  EXPECT_EQ(spec.floats, 3 * 23 + 2 * 35);  // 35 floats hold 69 numbers
}

// The exact sums of one channel over a window and all tokens before it, token by token.
class Float64Local {
 public:
  explicit Float64Local(std::vector<float> band) : band_(std::move(band)) {}

  double Step(double k, double v) {
    keys_.insert(keys_.begin(), k);
    values_.insert(values_.begin(), v);
    double num = num_;
    double den = den_;
    for (size_t age = 0; age < keys_.size(); ++age) {
      const double e = std::exp(keys_[age] + (band_.empty() ? 0.0 : double{band_[age]}));
      num += e * values_[age];
      den += e;
    }
    if (keys_.size() + 1 > band_.size()) {
      num_ += std::exp(keys_.back()) * values_.back();
      den_ += std::exp(keys_.back());
      keys_.pop_back();
      values_.pop_back();
    }
    return num / den;
  }

 private:
  const std::vector<float> band_;
  std::vector<double> keys_;  // latest first; at most window - 1 between steps
  std::vector<double> values_;
  double num_ = 0;
  double den_ = 0;
};

// Most of the text runs as a prompt, its end token by token.
TEST_F(MixerRelationsTest, AHundredThousandTokensDoNotDrift) {
  constexpr int64_t kTokens = 100'000;
  constexpr int64_t kDecoded = 20'000;
  constexpr int64_t kWidth = 4;
  for (const auto& [kind, window] : {std::pair(MixerKind::kAftLocal, int64_t{0}),
                                     {MixerKind::kAftLocal, 8},
                                     {MixerKind::kAftConv, 8}}) {
    const MixerCase mixer_case = {"", {.kind = kind, .window = window, .heads = kWidth}, kWidth};
    const std::vector<float> band = random_.Normals(window);
    Tables tables = {{"w.band", band}};
    for (int64_t head = 0; head < kWidth; ++head) {
      tables["conv.w"].insert(tables["conv.w"].end(), band.begin(), band.end());
    }
    TestMixer mixer(mixer_case, tables);
    EXPECT_EQ(mixer.state_spec().floats_per_token, 0);
    std::vector<Float64Local> channels(kWidth, Float64Local(band));
    std::vector<float> packed = random_.Normals(kTokens * 3 * kWidth);
    std::vector<double> reference;
    for (size_t t = 0; t < kTokens; ++t) {
      float* token = packed.data() + t * 3 * kWidth;
      for (size_t c = 0; c < kWidth; ++c) {
        token[c] = 100;  // opens the gate
        token[2 * kWidth + c] += 3;
        reference.push_back(channels[c].Step(token[kWidth + c], token[2 * kWidth + c]));
      }
    }
    EXPECT_TRUE(
        Close(mixer.RunCut(packed, {kTokens - kDecoded, 1}), reference, tolerance::kFp32LongRun));
  }
}

TEST_F(MixerRelationsTest, RefusesTablesThatDoNotFit) {
  constexpr int64_t kHid = 24;
  const MixerConfig config = {.window = 8};
  EXPECT_EQ(MakeMixer(config, kHid, {}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(MakeMixer(config, kHid, {{"w.band", at::zeros({1, 7})}}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(MakeMixer(config, kHid, {{"w.band", at::zeros({1, 8}, at::kDouble)}}).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace aft
