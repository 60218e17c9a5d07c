// The GPU's mixers, over the list of all kinds and forms, against the formulas and the CPU's
// mixers: outputs, states, continuing a state that the other made.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu_model/gpu_mixer_harness.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

constexpr double kTolerance = tolerance::kFp32.each;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

std::string CaseName(const testing::TestParamInfo<MixerCase>& info) { return info.param.name; }

std::vector<double> Doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

class GpuMixerTest : public testing::TestWithParam<MixerCase> {
 protected:
  TestRandom random_;
};

class CausalTest : public GpuMixerTest {
 protected:
  // What the case's ring and values hold is copied, never computed.
  bool exact(const StateSection& section) const {
    return section.name != "prefix" &&
           !(GetParam().config.kind == MixerKind::kCosine && section.name == "keys");
  }

  // Every float of the state that `tokens` tokens leave, in `gpu` as in `cpu`.
  void ExpectSameState(const StateSpec& spec, const std::vector<float>& gpu,
                       const std::vector<float>& cpu, double allowed) const {
    for (const StateSection& section : spec.sections) {
      const auto first = static_cast<size_t>(section.offset);
      for (size_t i = first; i < first + static_cast<size_t>(section.floats); ++i) {
        // A mixer with a key for every token leaves the places of later tokens as they were.
        if (std::memcmp(&gpu[i], &cpu[i], sizeof(float)) == 0) continue;
        ASSERT_FALSE(exact(section))
            << section.name << " " << i - first << ": " << gpu[i] << ", the CPU's " << cpu[i];
        const double scale = std::max(1.0, std::abs(double{cpu[i]}));
        ASSERT_LE(std::abs(double{gpu[i]} - double{cpu[i]}), allowed * scale)
            << section.name << " " << i - first << ": " << gpu[i] << ", the CPU's " << cpu[i];
      }
    }
  }
};

class EncodeTest : public GpuMixerTest {};

TEST_P(CausalTest, StatesLookLikeTheCpus) {
  const TestMixer cpu(GetParam(), random_);
  const StateSpec spec = GpuTestMixer(GetParam(), cpu).mixer().state_spec();
  const StateSpec expected = cpu.mixer().state_spec();
  EXPECT_EQ(spec.floats, expected.floats);
  EXPECT_EQ(spec.floats_per_token, expected.floats_per_token);
  ASSERT_EQ(spec.sections.size(), expected.sections.size());
  for (size_t i = 0; i < spec.sections.size(); ++i) {
    EXPECT_EQ(spec.sections[i].name, expected.sections[i].name);
    EXPECT_EQ(spec.sections[i].offset, expected.sections[i].offset);
    EXPECT_EQ(spec.sections[i].floats, expected.sections[i].floats);
  }
}

TEST_P(CausalTest, StepsEqualTheFormulaAndTheCpu) {
  TestMixer cpu(GetParam(), random_);
  GpuTestMixer gpu(GetParam(), cpu);
  const std::vector<float> packed = cpu.Packed(random_, kMixerTokens);
  const std::vector<float> y = gpu.RunCut(packed, {1});
  ExpectClose(y, cpu.Reference(packed), kTolerance);
  ExpectClose(y, Doubles(cpu.RunCut(packed, {1})), 2 * kTolerance);
  ExpectSameState(gpu.mixer().state_spec(), gpu.SlotBytes(0), cpu.SlotBytes(0), kTolerance);
}

TEST_P(CausalTest, PromptsEqualTheFormulaHoweverTheyAreCut) {
  TestMixer cpu(GetParam(), random_);
  GpuTestMixer gpu(GetParam(), cpu);
  const std::vector<float> packed = cpu.Packed(random_, kMixerTokens);
  const std::vector<double> reference = cpu.Reference(packed);
  cpu.RunCut(packed, {kMixerTokens});
  std::vector<int64_t> lengths(kMixerTokens);
  for (int64_t& length : lengths) length = 1 + random_.Below(11);
  for (const std::vector<int64_t>& cut : {std::vector<int64_t>{kMixerTokens}, {33, 1}, lengths}) {
    ExpectClose(gpu.RunCut(packed, cut), reference, kTolerance);
    ExpectSameState(gpu.mixer().state_spec(), gpu.SlotBytes(0), cpu.SlotBytes(0), kTolerance);
  }
}

TEST_P(CausalTest, StatesMoveBetweenCpuAndGpu) {
  constexpr int64_t kCut = 37;
  TestMixer cpu(GetParam(), random_);
  GpuTestMixer gpu(GetParam(), cpu);
  const std::vector<float> packed = cpu.Packed(random_, kMixerTokens);
  const std::vector<double> reference = cpu.Reference(packed);
  const std::vector<float> head = Tokens(packed, cpu.width(), 0, kCut);
  const std::vector<float> tail = Tokens(packed, cpu.width(), kCut, kMixerTokens);
  const std::vector<double> rest(reference.begin() + kCut * cpu.hid(), reference.end());

  cpu.RunCut(head, {8});
  for (const int64_t length : {int64_t{1}, kMixerTokens}) {
    gpu.SetSlotBytes(0, cpu.SlotBytes(0));
    ExpectClose(gpu.RunCut(tail, {length}, 0, kCut), rest, kTolerance);
  }

  gpu.RunCut(head, {1});
  cpu.SetSlotBytes(0, gpu.SlotBytes(0));
  ExpectClose(cpu.Run({{0, kCut, tail}})[0], rest, kTolerance);
}

TEST_P(CausalTest, PaddingRowsGiveZerosAndNeighboursDoNotMatter) {
  TestMixer cpu(GetParam(), random_);
  GpuTestMixer gpu(GetParam(), cpu, 3);
  GpuTestMixer alone(GetParam(), cpu);
  const std::vector<float> packed = cpu.Packed(random_, 12);
  const std::vector<float> other = cpu.Packed(random_, 12);
  const std::vector<float> zeros(static_cast<size_t>(11 * cpu.hid()), 0.0F);
  const auto part = [&](const std::vector<float>& x, int64_t begin, int64_t end) {
    return Tokens(x, cpu.width(), begin, end);
  };
  const std::vector<float> untouched = gpu.SlotBytes(0);

  std::vector<std::vector<float>> y =
      gpu.Prefill({{-1, 0, part(other, 0, 11)}, {2, 0, part(packed, 0, 11)}, {1, 0, other}});
  EXPECT_TRUE(SameBits(y[0], zeros));
  EXPECT_TRUE(SameBits(y[1], alone.Prefill({{0, 0, part(packed, 0, 11)}})[0]));

  y = gpu.Step(
      {{1, 0, part(other, 0, 1)}, {-1, 11, part(other, 0, 1)}, {2, 11, part(packed, 11, 12)}});
  EXPECT_TRUE(SameBits(y[1], Tokens(zeros, cpu.hid(), 0, 1)));
  EXPECT_TRUE(SameBits(y[2], alone.Step({{0, 11, part(packed, 11, 12)}})[0]));
  EXPECT_EQ(
      std::memcmp(gpu.SlotBytes(0).data(), untouched.data(), untouched.size() * sizeof(float)), 0);
}

TEST_P(CausalTest, LookAheadChangesNothing) {
  TestMixer cpu(GetParam(), random_);
  GpuTestMixer gpu(GetParam(), cpu, 2);
  const auto rows = static_cast<int32_t>(gpu.mixer().lookahead_rows());
  if (rows == 0) {
    EXPECT_EQ(gpu.mixer().slot_scratch_floats(), 0);
    EXPECT_NE(GetParam().name, "local_33");
    EXPECT_NE(GetParam().name, "full");
    return;
  }
  const std::vector<float> packed = cpu.Packed(random_, kMixerTokens);
  const std::vector<double> reference = cpu.Reference(packed);
  // Slot 1 begins with a prompt, and asks for sums at other positions than slot 0.
  constexpr int64_t kPrompt = 21;
  gpu.Prefill({{1, 0, Tokens(packed, cpu.width(), 0, kPrompt)}});
  std::vector<float> y;
  std::vector<float> later;
  for (int64_t t = 0; t < kMixerTokens; ++t) {
    const auto token = [&](int64_t at) { return Tokens(packed, cpu.width(), at, at + 1); };
    std::vector<MixerChunk> batch = {{0, t, token(t)}};
    std::vector<int32_t> ages = {static_cast<int32_t>(t % rows)};
    if (t + kPrompt < kMixerTokens) {
      batch.push_back({1, t + kPrompt, token(t + kPrompt)});
      ages.push_back(t < 3 ? -1 : static_cast<int32_t>((t - 3) % rows));
    }
    const std::vector<std::vector<float>> step = gpu.Step(batch, ages);
    y.insert(y.end(), step[0].begin(), step[0].end());
    if (step.size() > 1) later.insert(later.end(), step[1].begin(), step[1].end());
  }
  ExpectClose(y, reference, kTolerance);
  ExpectClose(later, {reference.begin() + kPrompt * cpu.hid(), reference.end()}, kTolerance);
}

// Also of the causal ones.
TEST_P(EncodeTest, EncodesItsFormula) {
  const TestMixer cpu(GetParam(), random_);
  const GpuTestMixer gpu(GetParam(), cpu);
  std::vector<std::vector<float>> texts;
  for (const int64_t tokens : {4, 28, 64}) texts.push_back(cpu.Packed(random_, tokens));
  const std::vector<std::vector<float>> y = gpu.Encode(texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    ExpectClose(y[i], cpu.Reference(texts[i]), kTolerance);
    EXPECT_TRUE(SameBits(gpu.Encode({texts[i]})[0], y[i]));
  }
}

TEST_P(EncodeTest, MaskedTokensLeaveNoTrace) {
  const TestMixer cpu(GetParam(), random_);
  const GpuTestMixer gpu(GetParam(), cpu);
  const std::vector<float> text = cpu.Packed(random_, 32);
  std::vector<float> mask(32, 0.0F);
  std::fill_n(mask.begin() + 24, 8, kMasked);
  std::vector<float> none(32, kMasked);
  const std::vector<std::vector<float>> y = gpu.Encode({text, text}, {mask, none});
  ExpectClose(Tokens(y[0], cpu.hid(), 0, 24), cpu.Reference(Tokens(text, cpu.width(), 0, 24)),
              kTolerance);
  EXPECT_TRUE(SameBits(y[1], std::vector<float>(y[1].size(), 0.0F)));
}

INSTANTIATE_TEST_SUITE_P(Mixers, CausalTest, testing::ValuesIn(CausalCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Causal, EncodeTest, testing::ValuesIn(CausalCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(BothWays, EncodeTest, testing::ValuesIn(BidirectionalCases()), CaseName);

// The largest key of a tile is 88 above one that a bias of 20 lifts above all else that its token
// sees.
TEST(GpuAftTest, BiasesLiftKeysFarBelowTheLargestOfATile) {
  MixerCase local = {"local", {}, 4};
  local.config.window = 3;
  TestMixer cpu(local, {{"w.band", {-14, 20, -14}}});
  GpuTestMixer gpu(local, cpu);
  constexpr float kKeys[] = {0, -43, 0, 45, 45};
  std::vector<float> packed;
  for (const float key : kKeys) {
    packed.insert(packed.end(), 4, 100);  // opens the gate
    packed.insert(packed.end(), 4, key);
    packed.insert(packed.end(), 4, key == -43 ? 1 : 0);
  }
  ExpectClose(gpu.RunCut(packed, {5}), cpu.Reference(packed), kTolerance);
  ExpectClose(gpu.Encode({packed})[0], cpu.Reference(packed), kTolerance);
}

TEST(GpuMixerErrors, AMissingTableIsDataLoss) {
  const MixerCase local = {"local", [] {
                             MixerConfig config;
                             config.window = 4;
                             return config;
                           }()};
  EXPECT_EQ(MakeGpuMixer(local.config, local.hid, {}, {}, TestDevice()).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(GpuMixerErrors, WhatAKernelRefusesIsInternalAndNamed) {
  TestRandom random;
  for (const MixerCase& mixer_case : CausalCases()) {
    const TestMixer cpu(mixer_case, random);
    const GpuTestMixer gpu(mixer_case, cpu);
    // Queries, keys and values are never fp16.
    const absl::Status status = gpu.mixer().Prefill(
        {1, nullptr, nullptr, nullptr, nullptr, 1, 1}, {nullptr, Number::kFp16, cpu.width()}, {},
        {nullptr, Number::kFp32, cpu.hid()}, nullptr, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << mixer_case.name;
    EXPECT_NE(status.message().find("Prefill: CUDA error 1"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace aft
