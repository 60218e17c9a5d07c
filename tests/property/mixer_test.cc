// Tests what every mixer promises, for a list of all kinds and forms (mixer_harness.h). Runs on the
// CPU with every instruction set, and on a GPU (tests/gpu_model).

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/mixer_harness.h"
#include "tests/support/close.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

class MixerTest : public testing::TestWithParam<std::tuple<MixerCase, int64_t>> {
 protected:
  const MixerCase& mixer_case() const { return std::get<0>(GetParam()); }
  bool is_aft() const { return IsAft(mixer_case().config); }
  bool has_no_encode() const { return SpecOf(mixer_case().config.kind).token_shift; }
  // Whether outputs are means of the values.
  bool averages() const { return mixer_case().config.kind != MixerKind::kWkv7; }
  std::vector<int64_t> RandomLengths() {
    std::vector<int64_t> lengths(kMixerTokens);
    for (int64_t& length : lengths) length = 1 + random_.Below(11);
    return lengths;
  }

  // A NaN in one channel of one token must not change other channels, nor (if causal) tokens before
  // it, in the result of `run`. A NaN in the key of a head must not change other heads.
  template <class Run>
  void ExpectANanStaysInItsChannel(const TestMixer& mixer, const Run& run, bool causal) {
    const MixerConfig& config = mixer_case().config;
    const std::vector<float> clean = mixer.Packed(random_, kMixerTokens);
    const std::vector<float> y = run(clean);
    const int64_t hid = mixer.hid();
    const int64_t head_width = config.kind == MixerKind::kAftConv ? hid / config.heads : 1;
    // The token is at every place in the CPU's groups of tokens.
    for (int64_t token = 10; token < 24; token += device_.one_order ? 1 : 5) {
      const int64_t channel = random_.Below(hid);
      std::vector<int64_t> columns = {mixer.value_column() + channel};
      if (is_aft()) columns.push_back(hid + channel / head_width);
      for (const int64_t column : columns) {
        const int64_t width = column < mixer.value_column() ? head_width : 1;
        std::vector<float> dirty = clean;
        dirty[static_cast<size_t>(token * mixer.width() + column)] = std::nanf("");
        std::vector<float> y2 = run(dirty);
        EXPECT_TRUE(std::isnan(y2[static_cast<size_t>(token * hid + channel)]));
        for (int64_t t = causal ? token : 0; t < kMixerTokens; ++t) {
          const auto first = t * hid + channel / width * width;
          std::copy_n(y.begin() + first, width, y2.begin() + first);
        }
        EXPECT_TRUE(Same(y2, y)) << "column " << column << " of token " << token;
      }
    }
  }

  const MixerDevice& device_ = TestedMixers();
  TestRandom random_;

 private:
  const UseInstructionSet use_{std::get<1>(GetParam())};
};

class CausalTest : public MixerTest {};
class BidirectionalTest : public MixerTest {};

TEST_P(CausalTest, EqualsItsFormula) {
  // The lengths are around the rows of tables with a length policy (30), and at the limit of the
  // other cases.
  for (const int64_t tokens : {int64_t{1}, int64_t{29}, int64_t{30}, int64_t{31}, kMixerTokens}) {
    TestMixer mixer(mixer_case(), random_);
    const std::vector<float> packed = mixer.Packed(random_, tokens);
    const std::vector<double> reference = mixer.Reference(packed);
    EXPECT_TRUE(Close(mixer.RunCut(packed, {1}), reference, device_.step));
    EXPECT_TRUE(Close(mixer.RunCut(packed, {tokens}), reference, device_.prompt));
    EXPECT_TRUE(Close(mixer.RunCut(packed, {tokens / 2 + 1, 1}), reference, device_.prompt));
  }
}

TEST_P(CausalTest, CuttingASequenceAnywhereChangesNothing) {
  TestMixer mixer(mixer_case(), random_);
  const std::string& keys =
      kKeySets[static_cast<size_t>(random_.Below(static_cast<int64_t>(kKeySets.size())))];
  SCOPED_TRACE(keys);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens, keys);
  const std::vector<float> whole = mixer.RunCut(packed, {kMixerTokens});
  EXPECT_TRUE(Same(mixer.RunCut(packed, {1}), whole));
  EXPECT_TRUE(Same(mixer.RunCut(packed, RandomLengths()), whole));
  for (int64_t cut = 1; cut < kMixerTokens; cut += device_.one_order ? 1 : 7) {
    ASSERT_TRUE(Same(mixer.RunCut(packed, {cut, kMixerTokens}), whole)) << cut;
  }
}

TEST_P(CausalTest, ALaterTokenChangesNoEarlierOutput) {
  TestMixer mixer(mixer_case(), random_);
  const int64_t changed = 1 + random_.Below(kMixerTokens - 1);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  std::vector<float> other = packed;
  for (auto i = static_cast<size_t>(changed * mixer.width()); i < other.size(); ++i) {
    other[i] = 64 - other[i];
  }
  const std::vector<float> y = mixer.RunCut(packed, {kMixerTokens});
  const std::vector<float> y2 = mixer.RunCut(other, {kMixerTokens});
  EXPECT_TRUE(Same(Tokens(y, mixer.hid(), 0, changed), Tokens(y2, mixer.hid(), 0, changed)));
  EXPECT_FALSE(SameBits(y, y2));
}

TEST_P(CausalTest, NeighboursSlotsAndPaddingChangeNoBit) {
  constexpr int64_t kSequences = 5;
  TestMixer mixer(mixer_case(), random_, kSequences + 1);
  std::vector<std::vector<float>> inputs;
  for (int64_t i = 0; i < kSequences; ++i) inputs.push_back(mixer.Packed(random_, kMixerTokens));
  std::vector<std::vector<float>> outputs(kSequences);
  std::vector<int64_t> positions(kSequences, 0);
  std::vector<std::vector<int64_t>> lengths(kSequences);
  const std::vector<float> untouched = mixer.SlotContents(kSequences);
  while (*std::min_element(positions.begin(), positions.end()) < kMixerTokens) {
    std::vector<MixerChunk> chunks = {{-1, 7, mixer.Packed(random_, 3)}};
    std::vector<size_t> sequences;
    for (size_t i = 0; i < kSequences; ++i) {
      if (positions[i] == kMixerTokens || random_.Below(3) == 0) continue;
      const int64_t end = std::min(
          kMixerTokens, positions[i] + (random_.Below(2) == 0 ? 1 : 1 + random_.Below(20)));
      // The slots are in another order than the rows.
      chunks.push_back({static_cast<int32_t>((3 * i + 1) % kSequences), positions[i],
                        Tokens(inputs[i], mixer.width(), positions[i], end)});
      sequences.push_back(i);
      lengths[i].push_back(end - positions[i]);
      positions[i] = end;
    }
    const std::vector<std::vector<float>> y = mixer.Run(chunks);
    EXPECT_TRUE(SameBits(y[0], std::vector<float>(y[0].size(), 0.0F)));
    for (size_t j = 0; j < sequences.size(); ++j) {
      std::vector<float>& output = outputs[sequences[j]];
      output.insert(output.end(), y[j + 1].begin(), y[j + 1].end());
    }
  }
  EXPECT_TRUE(SameBits(mixer.SlotContents(kSequences), untouched));
  for (size_t i = 0; i < kSequences; ++i) {
    // The sequence runs alone in a slot that other sequences used before.
    EXPECT_TRUE(SameBits(outputs[i], mixer.RunCut(inputs[i], lengths[i])));
  }
}

TEST_P(CausalTest, ABf16RingIsAnFp32RingOfRoundedKeysAndValues) {
  if (mixer_case().config.ring != Number::kBf16) return;
  TestMixer bf16(mixer_case(), random_);
  MixerCase fp32_case = mixer_case();
  fp32_case.config.ring = Number::kFp32;
  TestMixer fp32(fp32_case, bf16.tables());
  const std::vector<float> packed = random_.Normals(kMixerTokens * bf16.width());
  std::vector<float> rounded = packed;
  for (size_t i = 0; i < packed.size(); ++i) {
    if (static_cast<int64_t>(i) % bf16.width() >= bf16.hid()) rounded[i] = RoundToBf16(packed[i]);
  }
  const std::vector<float> y = bf16.RunCut(packed, {40, 1});
  EXPECT_TRUE(Same(y, fp32.RunCut(rounded, {40, 1})));
  EXPECT_FALSE(SameBits(y, fp32.RunCut(packed, {40, 1})));
  EXPECT_LT(bf16.state_spec().floats, fp32.state_spec().floats);
}

TEST_P(CausalTest, ACopiedSlotContinuesTheSame) {
  TestMixer mixer(mixer_case(), random_, 2);
  const int64_t fork = 1 + random_.Below(kMixerTokens - 1);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  const std::vector<float> head = Tokens(packed, mixer.width(), 0, fork);
  const std::vector<float> tail = Tokens(packed, mixer.width(), fork, kMixerTokens);
  mixer.RunCut(head, {fork});
  mixer.SetSlotContents(1, mixer.SlotContents(0));
  const std::vector<float> y = mixer.Run({{0, fork, tail}})[0];
  EXPECT_TRUE(SameBits(mixer.Run({{1, fork, tail}})[0], y));
  EXPECT_TRUE(SameBits(mixer.SlotContents(0), mixer.SlotContents(1)));
}

TEST_P(CausalTest, EncodeEqualsForward) {
  if (has_no_encode()) return;
  TestMixer mixer(mixer_case(), random_);
  const std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
  const std::vector<std::vector<float>> y =
      mixer.Encode({mixer.Packed(random_, 5), packed, mixer.Packed(random_, 1)});
  EXPECT_TRUE(Same(y[1], mixer.RunCut(packed, {kMixerTokens})));
}

TEST_P(CausalTest, ANanStaysInItsSequence) {
  TestMixer mixer(mixer_case(), random_, 2);
  const std::vector<float> clean = mixer.Packed(random_, kMixerTokens);
  std::vector<float> dirty = clean;
  const int64_t token = 1 + random_.Below(kMixerTokens - 1);
  for (int64_t i = 0; i < mixer.width(); ++i) {
    dirty[static_cast<size_t>(token * mixer.width() + i)] = std::nanf("");
  }
  const std::vector<float> y = mixer.RunCut(clean, {kMixerTokens});
  const std::vector<std::vector<float>> both = mixer.Run({{1, 0, dirty}, {0, 0, clean}});
  EXPECT_TRUE(SameBits(both[1], y));
  EXPECT_TRUE(Same(Tokens(both[0], mixer.hid(), 0, token), Tokens(y, mixer.hid(), 0, token)));
  EXPECT_TRUE(std::isnan(both[0][static_cast<size_t>(token * mixer.hid())]));
}

TEST_P(CausalTest, ANanStaysInItsChannel) {
  if (!averages()) return;  // in wkv7 every channel of a head reads every key
  TestMixer mixer(mixer_case(), random_);
  ExpectANanStaysInItsChannel(
      mixer,
      [&mixer](const std::vector<float>& packed) { return mixer.RunCut(packed, {kMixerTokens}); },
      /*causal=*/true);
}

TEST_P(CausalTest, ExtremeInputsStayWithinTheValues) {
  if (!averages()) return;
  for (const float scale : {128.0F, 8192.0F}) {
    TestMixer mixer(mixer_case(), random_);
    std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
    float bound = 0;
    for (size_t i = 0; i < packed.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % mixer.width();
      if (column < mixer.value_column() || column >= mixer.value_column() + mixer.hid()) {
        packed[i] *= scale;
      } else {
        bound = std::max(bound, std::abs(packed[i]));
      }
    }
    const std::vector<float> y = mixer.RunCut(packed, {20, 1});
    const double rounding = device_.one_order ? tolerance::kMean : device_.prompt.each;
    for (const float value : y) ASSERT_LE(std::abs(value), bound * (1 + rounding));
    if (!is_aft()) continue;
    // In a recurrence the rounding of every decayed maximum counts.
    EXPECT_TRUE(Close(y, mixer.Reference(packed),
                      has_no_encode() ? tolerance::kKeysRounded : device_.prompt));
  }
}

TEST_P(CausalTest, ConstantValuesStayConstantExceptForTheGate) {
  if (!averages()) return;
  TestMixer mixer(mixer_case(), random_);
  std::vector<float> packed = mixer.Packed(random_, kMixerTokens, "u1e4");
  for (int64_t t = 0; t < kMixerTokens; ++t) {
    std::fill_n(packed.begin() + t * mixer.width() + mixer.value_column(), mixer.hid(), -2.5F);
  }
  const std::vector<float> y = mixer.RunCut(packed, {33, 1});
  for (int64_t t = 0; t < kMixerTokens; ++t) {
    for (int64_t c = 0; c < mixer.hid(); ++c) {
      const double q = packed[static_cast<size_t>(t * mixer.width() + c)];
      ASSERT_NEAR(y[static_cast<size_t>(t * mixer.hid() + c)],
                  is_aft() ? -2.5 / (1 + std::exp(-q)) : -2.5,
                  device_.one_order ? tolerance::kConstantValue : 2.5 * device_.prompt.each);
    }
  }
}

// wkv7 divides a key by its length.
TEST_P(CausalTest, AKeyOfZerosHasNoDirection) {
  if (mixer_case().config.kind != MixerKind::kWkv7) return;
  TestMixer mixer(mixer_case(), random_);
  std::vector<float> packed = mixer.Packed(random_, 8);
  const int64_t keys = mixer.value_column() - mixer.hid();  // behind r and w
  std::fill_n(packed.begin() + 3 * mixer.width() + keys, mixer.hid(), 0.0F);
  EXPECT_TRUE(Close(mixer.RunCut(packed, {5, 1}), mixer.Reference(packed), device_.prompt));
}

TEST_P(CausalTest, StateSectionsAreContiguousAndComplete) {
  const TestMixer mixer(mixer_case(), random_);
  const StateSpec spec = mixer.state_spec();
  int64_t end = 0;
  for (const StateSection& section : spec.sections) {
    EXPECT_EQ(section.offset, end) << section.name;
    end += section.floats;
  }
  EXPECT_EQ(end, spec.floats);
  EXPECT_EQ(spec.floats_per_token > 0, StateGrows(mixer_case().config));
}

// These tests also run for the causal cases: Encode, with masks and neighbours.
TEST_P(BidirectionalTest, EncodesItsFormula) {
  const TestMixer mixer(mixer_case(), random_);
  std::vector<std::vector<float>> sequences;
  for (const int64_t tokens : {4, 8, 28, 32, 64}) {
    sequences.push_back(mixer.Packed(random_, tokens));
  }
  const std::vector<std::vector<float>> y = mixer.Encode(sequences);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<double> reference = mixer.Reference(sequences[i]);
    EXPECT_TRUE(Close(y[i], reference, device_.prompt));
    EXPECT_TRUE(SameBits(mixer.Encode({sequences[i]})[0], y[i]));
  }
}

TEST_P(BidirectionalTest, MaskedTokensLeaveNoTrace) {
  constexpr int64_t kText = 40;
  const TestMixer mixer(mixer_case(), random_);
  const std::vector<float> text = mixer.Packed(random_, kText);
  for (const float masked : {kMasked, std::numeric_limits<float>::lowest()}) {
    std::vector<float> padded = text;
    padded.resize(static_cast<size_t>(kMixerTokens * mixer.width()), std::nanf(""));
    std::vector<float> mask(kMixerTokens, 0.0F);
    std::fill(mask.begin() + kText, mask.end(), masked);
    const std::vector<float> y = Tokens(mixer.Encode({padded}, {mask})[0], mixer.hid(), 0, kText);
    EXPECT_TRUE(Close(y, mixer.Reference(text), device_.prompt));
    // Masks with holes: some rows see only masked tokens.
    for (float& m : mask) m = random_.Below(3) > 0 ? masked : 0;
    std::fill_n(mask.begin(), 20, masked);
    const std::vector<float> holes = mixer.Packed(random_, kMixerTokens);
    const std::vector<float> z = mixer.Encode({holes}, {mask})[0];
    EXPECT_TRUE(Close(z, mixer.Reference(holes, mask), device_.prompt));
    // A finite mask is added to the scores.
    for (float& m : mask) m = m == 0 ? static_cast<float>(random_.Normal()) : m;
    EXPECT_TRUE(
        Close(mixer.Encode({holes}, {mask})[0], mixer.Reference(holes, mask), device_.prompt));
  }
}

TEST_P(BidirectionalTest, RowsThatSeeNoKeyAreZero) {
  const TestMixer mixer(mixer_case(), random_);
  const std::vector<float> packed = mixer.Packed(random_, 12);
  const std::vector<std::vector<float>> y =
      mixer.Encode({packed, packed}, {std::vector<float>(12, kMasked), std::vector<float>(12)});
  EXPECT_TRUE(SameBits(y[0], std::vector<float>(y[0].size(), 0.0F)));
  EXPECT_TRUE(SameBits(y[1], mixer.Encode({packed})[0]));
}

TEST_P(BidirectionalTest, ExtremeKeysAndBiasesStayExact) {
  if (!is_aft()) return;  // dot products of 1e4 lose their digits
  for (const float scale : {128.0F, 8192.0F}) {
    const TestMixer mixer(mixer_case(), random_);
    std::vector<float> packed = mixer.Packed(random_, kMixerTokens);
    for (size_t i = 0; i < packed.size(); ++i) {
      if (static_cast<int64_t>(i) % mixer.width() < mixer.value_column()) packed[i] *= scale;
    }
    EXPECT_TRUE(Close(mixer.Encode({packed})[0], mixer.Reference(packed), device_.prompt));
  }
}

TEST_P(BidirectionalTest, ANanStaysInItsChannel) {
  const TestMixer mixer(mixer_case(), random_);
  ExpectANanStaysInItsChannel(
      mixer, [&mixer](const std::vector<float>& packed) { return mixer.Encode({packed})[0]; },
      mixer_case().config.causal);
}

constexpr auto kName = [](const auto& info) {
  const int64_t set = std::get<1>(info.param);
  return std::get<0>(info.param).name + (set == 0 ? "" : "_" + InstructionSetName(set));
};
auto OnEveryInstructionSet(const std::vector<MixerCase>& cases) {
  return testing::Combine(testing::ValuesIn(cases),
                          testing::ValuesIn(TestedMixers().instruction_sets));
}
INSTANTIATE_TEST_SUITE_P(Mixers, CausalTest, OnEveryInstructionSet(CausalCases()), kName);
INSTANTIATE_TEST_SUITE_P(Recurrent, CausalTest, OnEveryInstructionSet(RecurrentCases()), kName);
INSTANTIATE_TEST_SUITE_P(BothWays, BidirectionalTest, OnEveryInstructionSet(BidirectionalCases()),
                         kName);
INSTANTIATE_TEST_SUITE_P(Causal, BidirectionalTest, OnEveryInstructionSet(CausalCases()), kName);

}  // namespace
}  // namespace aft
