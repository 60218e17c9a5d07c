// The GPU's mixers beside the CPU's: states, continuing a state that the other made, look-ahead.
// What mixers promise on every device is in tests/property/mixer_test.cc, which runs here too.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu_model/gpu_mixers.h"
#include "tests/gpu_model/test_queue.h"
#include "tests/support/close.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

constexpr Tolerance kTolerance = {tolerance::kFp32.each};

std::string CaseName(const testing::TestParamInfo<MixerCase>& info) { return info.param.name; }

class BesideTheCpuTest : public testing::TestWithParam<MixerCase> {
 protected:
  // What the case's ring and values hold is copied, never computed.
  bool exact(const StateSection& section) const {
    return section.name != "prefix" &&
           !(SpecOf(GetParam().config.kind).attention.score == AttentionScore::kCosine &&
             section.name == "keys");
  }

  // Every float of the state that `tokens` tokens leave, in `gpu` as in `cpu`.
  void ExpectSameState(const StateSpec& spec, const std::vector<float>& gpu,
                       const std::vector<float>& cpu) const {
    for (const StateSection& section : spec.sections) {
      const auto first = static_cast<size_t>(section.offset);
      for (size_t i = first; i < first + static_cast<size_t>(section.floats); ++i) {
        // A mixer with a key for every token leaves the places of later tokens as they were.
        if (std::memcmp(&gpu[i], &cpu[i], sizeof(float)) == 0) continue;
        ASSERT_FALSE(exact(section))
            << section.name << " " << i - first << ": " << gpu[i] << ", the CPU's " << cpu[i];
        const double scale = std::max(1.0, std::abs(double{cpu[i]}));
        ASSERT_LE(std::abs(double{gpu[i]} - double{cpu[i]}), kTolerance.each * scale)
            << section.name << " " << i - first << ": " << gpu[i] << ", the CPU's " << cpu[i];
      }
    }
  }

  TestRandom random_;
};

TEST_P(BesideTheCpuTest, StatesEqualTheCpusHoweverATextIsCut) {
  TestMixer cpu(GetParam(), random_, 1, CpuMixers());
  TestMixer gpu(GetParam(), cpu.tables());
  const StateSpec spec = gpu.state_spec();
  EXPECT_EQ(spec.floats_per_token, cpu.state_spec().floats_per_token);
  ASSERT_EQ(SlotLayout({spec}).fingerprint(), SlotLayout({cpu.state_spec()}).fingerprint());
  const std::vector<float> packed = cpu.Packed(random_, kMixerTokens);
  cpu.RunCut(packed, {kMixerTokens});
  std::vector<int64_t> lengths(kMixerTokens);
  for (int64_t& length : lengths) length = 1 + random_.Below(11);
  for (const std::vector<int64_t>& cut :
       {std::vector<int64_t>{1}, {kMixerTokens}, {33, 1}, lengths}) {
    gpu.RunCut(packed, cut);
    ExpectSameState(spec, gpu.SlotBytes(0), cpu.SlotBytes(0));
  }
}

TEST_P(BesideTheCpuTest, StatesMoveBetweenCpuAndGpu) {
  constexpr int64_t kCut = 37;
  TestMixer cpu(GetParam(), random_, 1, CpuMixers());
  TestMixer gpu(GetParam(), cpu.tables());
  const std::vector<float> packed = cpu.Packed(random_, kMixerTokens);
  const std::vector<double> reference = cpu.Reference(packed);
  const std::vector<float> head = Tokens(packed, cpu.width(), 0, kCut);
  const std::vector<float> tail = Tokens(packed, cpu.width(), kCut, kMixerTokens);
  const std::vector<double> rest(reference.begin() + kCut * cpu.hid(), reference.end());

  cpu.RunCut(head, {8});
  for (const int64_t length : {int64_t{1}, kMixerTokens}) {
    gpu.SetSlotBytes(0, cpu.SlotBytes(0));
    EXPECT_TRUE(Close(gpu.RunCut(tail, {length}, 0, kCut), rest, kTolerance));
  }

  gpu.RunCut(head, {1});
  cpu.SetSlotBytes(0, gpu.SlotBytes(0));
  EXPECT_TRUE(Close(cpu.Run({{0, kCut, tail}})[0], rest, kTolerance));
}

TEST_P(BesideTheCpuTest, LookAheadChangesNothing) {
  TestMixer cpu(GetParam(), random_, 1, CpuMixers());
  GpuTestMixer gpu(GetParam(), cpu.tables(), 2);
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
  EXPECT_TRUE(Close(y, reference, kTolerance));
  const std::vector<double> rest(reference.begin() + kPrompt * cpu.hid(), reference.end());
  EXPECT_TRUE(Close(later, rest, kTolerance));
}

INSTANTIATE_TEST_SUITE_P(Mixers, BesideTheCpuTest, testing::ValuesIn(CausalCases()), CaseName);

// The largest key of a tile is 88 above one that a bias of 20 lifts above all else that its token
// sees.
TEST(GpuAftTest, BiasesLiftKeysFarBelowTheLargestOfATile) {
  const std::map<std::string, std::vector<float>> tables = {{"w.band", {-14, 20, -14}}};
  TestMixer gpu({"local", {.window = 3}, 4}, tables);
  constexpr float kKeys[] = {0, -43, 0, 45, 45};
  std::vector<float> packed;
  for (const float key : kKeys) {
    packed.insert(packed.end(), 4, 100);  // opens the gate
    packed.insert(packed.end(), 4, key);
    packed.insert(packed.end(), 4, key == -43 ? 1 : 0);
  }
  EXPECT_TRUE(Close(gpu.RunCut(packed, {5}), gpu.Reference(packed), kTolerance));
  EXPECT_TRUE(Close(gpu.Encode({packed})[0], gpu.Reference(packed), kTolerance));
}

TEST(GpuMixerErrors, AMissingTableIsDataLoss) {
  const MixerCase local = {"local", {.window = 4}};
  EXPECT_EQ(MakeGpuMixer(local.config, local.hid, {}, {}, TestDevice()).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(GpuMixerErrors, WhatAKernelRefusesIsInternalAndNamed) {
  TestRandom random;
  for (const MixerCase& mixer_case : CausalCases()) {
    const TestMixer cpu(mixer_case, random, 1, CpuMixers());
    const GpuTestMixer gpu(mixer_case, cpu.tables());
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
