// What every mixer promises, over a list of all kinds and forms (mixer_harness.h).

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/property/mixer_harness.h"

namespace aft {
namespace {

constexpr double kTolerance = 1e-5;  // aft-operators.md section 7
constexpr float kMasked = -std::numeric_limits<float>::infinity();

std::string CaseName(const testing::TestParamInfo<MixerCase>& info) { return info.param.name; }

class MixerTest : public testing::TestWithParam<MixerCase> {
 protected:
  bool is_aft() const {
    const MixerKind kind = GetParam().config.kind;
    return kind == MixerKind::kAftSimple || kind == MixerKind::kAftLocal ||
           kind == MixerKind::kAftFull || kind == MixerKind::kAftConv;
  }
  // Column of the values.
  int64_t values(const TestMixer& mixer) const {
    const MixerKind kind = GetParam().config.kind;
    if (kind == MixerKind::kAdditive || kind == MixerKind::kAftConv ||
        kind == MixerKind::kLocation) {
      return mixer.width() - mixer.hid();
    }
    return 2 * mixer.hid();
  }
  std::vector<int64_t> RandomLengths() {
    std::vector<int64_t> lengths(kMixerTokens);
    for (int64_t& length : lengths) length = 1 + random_.Below(11);
    return lengths;
  }

  TestRandom random_;
};

class CausalTest : public MixerTest {};
class BidirectionalTest : public MixerTest {};

TEST_P(CausalTest, EqualsItsFormulaAndItsTrainedForm) {
  // Around the rows of the tables with a length policy (30), and at the limit of the others.
  for (const int64_t tokens : {int64_t{1}, int64_t{29}, int64_t{30}, int64_t{31}, kMixerTokens}) {
    TestMixer mixer(GetParam(), random_);
    const std::vector<float> packed = mixer.Packed(random_, tokens);
    const std::vector<double> reference = mixer.Reference(packed);
    ExpectClose(mixer.RunCut(packed, {tokens}), reference, kTolerance);
    ExpectClose(mixer.RunCut(packed, {tokens / 2 + 1, 1}), reference, kTolerance);
    ExpectClose(mixer.Trained(packed), reference, 2e-5);
  }
}

TEST_P(CausalTest, CuttingASequenceAnywhereChangesNoBit) {
  TestMixer mixer(GetParam(), random_);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  const std::vector<float> whole = mixer.RunCut(packed, {kMixerTokens});
  EXPECT_TRUE(SameBits(mixer.RunCut(packed, {1}), whole));
  EXPECT_TRUE(SameBits(mixer.RunCut(packed, RandomLengths()), whole));
  for (int64_t cut = 1; cut < kMixerTokens; ++cut) {
    ASSERT_TRUE(SameBits(mixer.RunCut(packed, {cut, kMixerTokens}), whole)) << cut;
  }
}

TEST_P(CausalTest, ALaterTokenChangesNoEarlierOutput) {
  TestMixer mixer(GetParam(), random_);
  const int64_t changed = 1 + random_.Below(kMixerTokens - 1);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  std::vector<float> other = packed;
  for (auto i = static_cast<size_t>(changed * mixer.width()); i < other.size(); ++i) {
    other[i] = 64 - other[i];
  }
  const std::vector<float> y = mixer.RunCut(packed, {kMixerTokens});
  const std::vector<float> y2 = mixer.RunCut(other, {kMixerTokens});
  EXPECT_TRUE(SameBits(Tokens(y, mixer.hid(), 0, changed), Tokens(y2, mixer.hid(), 0, changed)));
  EXPECT_FALSE(SameBits(y, y2));
}

TEST_P(CausalTest, NeighboursSlotsAndPaddingChangeNoBit) {
  constexpr int64_t kSequences = 5;
  TestMixer mixer(GetParam(), random_, kSequences + 1);
  std::vector<std::vector<float>> inputs;
  for (int64_t i = 0; i < kSequences; ++i) inputs.push_back(mixer.Packed(random_, kMixerTokens));
  std::vector<std::vector<float>> outputs(kSequences);
  std::vector<int64_t> positions(kSequences, 0);
  const std::vector<float> untouched = mixer.SlotBytes(kSequences);
  while (*std::min_element(positions.begin(), positions.end()) < kMixerTokens) {
    std::vector<MixerChunk> chunks = {{-1, 7, mixer.Packed(random_, 3)}};
    std::vector<size_t> sequences;
    for (size_t i = 0; i < kSequences; ++i) {
      if (positions[i] == kMixerTokens || random_.Below(3) == 0) continue;
      const int64_t end = std::min(
          kMixerTokens, positions[i] + (random_.Below(2) == 0 ? 1 : 1 + random_.Below(20)));
      // Slots in another order than rows.
      chunks.push_back({static_cast<int32_t>((3 * i + 1) % kSequences), positions[i],
                        Tokens(inputs[i], mixer.width(), positions[i], end)});
      sequences.push_back(i);
      positions[i] = end;
    }
    const std::vector<std::vector<float>> y = mixer.Run(chunks);
    EXPECT_TRUE(SameBits(y[0], std::vector<float>(y[0].size(), 0.0F)));
    for (size_t j = 0; j < sequences.size(); ++j) {
      std::vector<float>& output = outputs[sequences[j]];
      output.insert(output.end(), y[j + 1].begin(), y[j + 1].end());
    }
  }
  EXPECT_TRUE(SameBits(mixer.SlotBytes(kSequences), untouched));
  for (size_t i = 0; i < kSequences; ++i) {
    // In a slot that others used before.
    EXPECT_TRUE(SameBits(outputs[i], mixer.RunCut(inputs[i], {kMixerTokens})));
  }
}

TEST_P(CausalTest, ACopiedSlotContinuesTheSame) {
  TestMixer mixer(GetParam(), random_, 2);
  const int64_t fork = 1 + random_.Below(kMixerTokens - 1);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  const std::vector<float> head = Tokens(packed, mixer.width(), 0, fork);
  const std::vector<float> tail = Tokens(packed, mixer.width(), fork, kMixerTokens);
  mixer.RunCut(head, {fork});
  mixer.SetSlotBytes(1, mixer.SlotBytes(0));
  const std::vector<float> y = mixer.Run({{0, fork, tail}})[0];
  EXPECT_TRUE(SameBits(mixer.Run({{1, fork, tail}})[0], y));
  EXPECT_TRUE(SameBits(mixer.SlotBytes(0), mixer.SlotBytes(1)));
}

TEST_P(CausalTest, EncodeEqualsForward) {
  TestMixer mixer(GetParam(), random_);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  const std::vector<std::vector<float>> y =
      mixer.Encode({mixer.Packed(random_, 5), packed, mixer.Packed(random_, 1)});
  EXPECT_TRUE(SameBits(y[1], mixer.RunCut(packed, {kMixerTokens})));
}

TEST_P(CausalTest, ANanStaysInItsSequence) {
  TestMixer mixer(GetParam(), random_, 2);
  const std::vector<float> clean = mixer.Packed(random_, kMixerTokens);
  std::vector<float> dirty = clean;
  const int64_t token = 1 + random_.Below(kMixerTokens - 1);
  for (int64_t i = 0; i < mixer.width(); ++i) {
    dirty[static_cast<size_t>(token * mixer.width() + i)] = std::nanf("");
  }
  const std::vector<float> y = mixer.RunCut(clean, {kMixerTokens});
  const std::vector<std::vector<float>> both = mixer.Run({{1, 0, dirty}, {0, 0, clean}});
  EXPECT_TRUE(SameBits(both[1], y));
  EXPECT_TRUE(SameBits(Tokens(both[0], mixer.hid(), 0, token), Tokens(y, mixer.hid(), 0, token)));
  EXPECT_TRUE(std::isnan(both[0][static_cast<size_t>(token * mixer.hid())]));
}

TEST_P(CausalTest, ExtremeInputsStayWithinTheValues) {
  for (const float scale : {128.0F, 8192.0F}) {
    TestMixer mixer(GetParam(), random_);
    std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
    float bound = 0;
    for (size_t i = 0; i < packed.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % mixer.width();
      if (column < values(mixer) || column >= values(mixer) + mixer.hid()) {
        packed[i] *= scale;
      } else {
        bound = std::max(bound, std::abs(packed[i]));
      }
    }
    const std::vector<float> y = mixer.RunCut(packed, {20, 1});
    for (const float value : y) ASSERT_LE(std::abs(value), bound * (1 + 1e-5F));
    if (is_aft()) ExpectClose(y, mixer.Reference(packed), kTolerance);
  }
}

TEST_P(CausalTest, ConstantValuesComeOutAsTheyAreAndGated) {
  TestMixer mixer(GetParam(), random_);
  std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  for (int64_t t = 0; t < kMixerTokens; ++t) {
    std::fill_n(packed.begin() + t * mixer.width() + values(mixer), mixer.hid(), -2.5F);
  }
  const std::vector<float> y = mixer.RunCut(packed, {33, 1});
  for (int64_t t = 0; t < kMixerTokens; ++t) {
    for (int64_t c = 0; c < mixer.hid(); ++c) {
      const double q = packed[static_cast<size_t>(t * mixer.width() + c)];
      ASSERT_NEAR(y[static_cast<size_t>(t * mixer.hid() + c)],
                  is_aft() ? -2.5 / (1 + std::exp(-q)) : -2.5, 3e-6);
    }
  }
}

TEST_P(CausalTest, StateSectionsAreContiguousAndComplete) {
  const TestMixer mixer(GetParam(), random_);
  const StateSpec spec = mixer.mixer().state_spec();
  int64_t end = 0;
  for (const StateSection& section : spec.sections) {
    EXPECT_EQ(section.offset, end) << section.name;
    end += section.floats;
  }
  EXPECT_EQ(end, spec.floats);
  EXPECT_EQ(spec.floats_per_token > 0, StateGrows(GetParam().config));
}

// Also of the causal ones: what Encode does with masks and neighbours.
TEST_P(BidirectionalTest, EncodesItsFormula) {
  const TestMixer mixer(GetParam(), random_);
  std::vector<std::vector<float>> sequences;
  for (const int64_t tokens : {4, 8, 28, 32, 64}) {
    sequences.push_back(mixer.Packed(random_, tokens));
  }
  const std::vector<std::vector<float>> y = mixer.Encode(sequences);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<double> reference = mixer.Reference(sequences[i]);
    ExpectClose(y[i], reference, kTolerance);
    ExpectClose(mixer.Trained(sequences[i]), reference, 2e-5);
    EXPECT_TRUE(SameBits(mixer.Encode({sequences[i]})[0], y[i]));
  }
}

TEST_P(BidirectionalTest, MaskedTokensLeaveNoTrace) {
  constexpr int64_t kText = 40;
  const TestMixer mixer(GetParam(), random_);
  const std::vector<float> text = mixer.Packed(random_, kText);
  for (const float masked : {kMasked, std::numeric_limits<float>::lowest()}) {
    std::vector<float> padded = text;
    const std::vector<float> padding = random_.Normals((kMixerTokens - kText) * mixer.width(), 100);
    padded.insert(padded.end(), padding.begin(), padding.end());
    std::vector<float> mask(kMixerTokens, 0.0F);
    std::fill(mask.begin() + kText, mask.end(), masked);
    const std::vector<float> y = Tokens(mixer.Encode({padded}, {mask})[0], mixer.hid(), 0, kText);
    ExpectClose(y, mixer.Reference(text), kTolerance);
    // Holes, which some rows see nothing but.
    for (float& m : mask) m = random_.Below(3) > 0 ? masked : 0;
    std::fill_n(mask.begin(), 20, masked);
    const std::vector<float> holes = mixer.Packed(random_, kMixerTokens);
    ExpectClose(mixer.Encode({holes}, {mask})[0], mixer.Reference(holes, mask), kTolerance);
  }
}

TEST_P(BidirectionalTest, RowsThatSeeNoKeyAreZero) {
  const TestMixer mixer(GetParam(), random_);
  const std::vector<float> packed = mixer.Packed(random_, 12);
  const std::vector<std::vector<float>> y =
      mixer.Encode({packed, packed}, {std::vector<float>(12, kMasked), std::vector<float>(12)});
  EXPECT_TRUE(SameBits(y[0], std::vector<float>(y[0].size(), 0.0F)));
  EXPECT_TRUE(SameBits(y[1], mixer.Encode({packed})[0]));
}

TEST_P(BidirectionalTest, ExtremeKeysAndBiasesStayExact) {
  if (!is_aft()) return;  // dot products of 1e4 lose their digits
  for (const float scale : {128.0F, 8192.0F}) {
    const TestMixer mixer(GetParam(), random_);
    std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
    for (size_t i = 0; i < packed.size(); ++i) {
      if (static_cast<int64_t>(i) % mixer.width() < values(mixer)) packed[i] *= scale;
    }
    ExpectClose(mixer.Encode({packed})[0], mixer.Reference(packed), kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, CausalTest, testing::ValuesIn(CausalCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(BothWays, BidirectionalTest, testing::ValuesIn(BidirectionalCases()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Causal, BidirectionalTest, testing::ValuesIn(CausalCases()), CaseName);

}  // namespace
}  // namespace aft
