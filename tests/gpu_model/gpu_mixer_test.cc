// Tests of the GPU's mixers alone. tests/property has the tests of what mixers promise on every
// device, which this program also runs. tests/cuda compares their states with the CPU's.

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

// The third token sees keys 0, -43 and 0. With the biases its exponents are -14, -23 and -14, so
// the second one counts, although the largest key of the tile, 45, is 88 above -43.
TEST(GpuAftTest, BiasesLiftKeysFarBelowTheLargestOfATile) {
  const std::map<std::string, std::vector<float>> tables = {{"w.band", {-14, 20, -14}}};
  TestMixer gpu({"local", {.window = 3}, 4}, tables);
  constexpr float kKeys[] = {0, -43, 0, 45, 45};
  std::vector<float> packed;
  for (const float key : kKeys) {
    packed.insert(packed.end(), 4, 100);  // sigmoid(q) = 1
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

TEST(GpuMixerErrors, ACallThatAKernelRefusesIsInternalAndNamed) {
  TestRandom random;
  std::vector<MixerCase> cases = CausalCases();
  for (const MixerCase& recurrent : RecurrentCases()) cases.push_back(recurrent);
  for (const MixerCase& mixer_case : cases) {
    const TestMixer cpu(mixer_case, random, 1, CpuMixers());
    const GpuTestMixer gpu(mixer_case, cpu.tables());
    // The kernels refuse this because queries, keys and values are always fp32.
    const absl::Status status = gpu.mixer().Prefill(
        {1, nullptr, nullptr, nullptr, nullptr, 1, 1}, {nullptr, Number::kBf16, cpu.width()}, {},
        {nullptr, Number::kFp32, cpu.hid()}, nullptr, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << mixer_case.name;
    EXPECT_NE(status.message().find("Prefill: CUDA error 1: the kernel does not support a size"),
              std::string::npos)
        << status;
  }
}

}  // namespace
}  // namespace aft
