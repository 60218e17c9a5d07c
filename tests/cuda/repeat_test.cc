// The same call on the same inputs gives the same bits, every time: no sum hangs on which thread or
// block comes first. On a GPU 20 times; without one, under as many orders of threads as time
// allows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/kernels/cuda/aft/aft.h"
#include "model/kernels/cuda/attention/attention.h"
#include "model/kernels/cuda/conv/conv.h"
#include "tests/cuda/device_array.h"
#include "tests/property/random_inputs.h"

namespace aft::kernels::cuda {
namespace {

#ifdef AFT_CUDA_ON_CPU
constexpr int kRepeats = 4;
#else
constexpr int kRepeats = 20;
#endif

constexpr int64_t kHid = 64;
constexpr int64_t kRows = 3;
constexpr int64_t kLongest = 150;

std::vector<uint32_t> Bits(const std::vector<float>& numbers) {
  std::vector<uint32_t> bits(numbers.size());
  std::copy_n(reinterpret_cast<const uint32_t*>(numbers.data()), numbers.size(), bits.data());
  return bits;
}

// Three rows of 150, 1 and 70 tokens, at positions 0, 200 and 40 of slots 2, 0 and 1.
class RepeatTest : public testing::Test {
 protected:
  ChunkRows chunks() const {
    ChunkRows chunks;
    chunks.rows = kRows;
    chunks.slot = slots_.get();
    chunks.position = positions_.get();
    chunks.offset = offsets_.get();
    chunks.tokens = kTokens;
    chunks.longest = kLongest;
    return chunks;
  }
  StepRows steps() const {
    StepRows steps;
    steps.rows = kRows;
    steps.slot = slots_.get();
    steps.position = positions_.get();
    return steps;
  }

  // Runs `call` again and again from the same state and workspace.
  void ExpectSameBits(int64_t packed_width, int64_t slot_floats, int64_t workspace_floats,
                      const std::function<int(In, State, Out, float*)>& call) {
    const DeviceArray<float> packed(random_.Normals(kTokens * packed_width));
    const int64_t stride = (slot_floats + 15) / 16 * 16;
    std::vector<float> state(static_cast<size_t>(kRows * stride));
    for (float& x : state) x = static_cast<float>(random_.Uniform(0.5, 1.5));
    std::vector<uint32_t> first_y;
    std::vector<uint32_t> first_state;
    for (int i = 0; i < kRepeats; ++i) {
      DeviceArray<float> states(state);
      const DeviceArray<float> y(static_cast<size_t>(kTokens * kHid));
      const DeviceArray<float> workspace(static_cast<size_t>(workspace_floats));
      const int error = call({packed.get(), Number::kFp32, packed_width}, {states.get(), stride},
                             {y.get(), Number::kFp32, kHid}, workspace.get());
      ASSERT_EQ(error, 0) << cudaGetErrorString(static_cast<cudaError_t>(error));
      if (i == 0) {
        first_y = Bits(y.Get());
        first_state = Bits(states.Get());
        continue;
      }
      ASSERT_EQ(Bits(y.Get()), first_y) << "run " << i;
      ASSERT_EQ(Bits(states.Get()), first_state) << "run " << i;
    }
  }

  void ExpectAft(int64_t window) {
    const DeviceArray<float> bias(random_.Normals(std::max<int64_t>(window, 1)));
    AftModel model;
    model.hid = kHid;
    model.window = window;
    model.bias = window > 0 ? bias.get() : nullptr;
    ExpectSameBits(3 * kHid, model.layout().Floats(),
                   AftPrefillWorkspaceFloats(model, kRows, kTokens),
                   [&](In in, State state, Out y, float* workspace) {
                     return AftPrefill(model, chunks(), in, state, y, workspace, nullptr);
                   });
    ExpectSameBits(3 * kHid, model.layout().Floats(), 0, [&](In in, State state, Out y, float*) {
      return AftStep(model, steps(), in, state, {}, y, nullptr);
    });
  }

  static constexpr int64_t kTokens = kLongest + 1 + 70;
  TestRandom random_;

 private:
  const DeviceArray<int32_t> slots_{std::vector<int32_t>{2, 0, 1}};
  const DeviceArray<int64_t> positions_{std::vector<int64_t>{0, 200, 40}};
  const DeviceArray<int64_t> offsets_{
      std::vector<int64_t>{0, kLongest, kLongest + 1, kLongest + 1 + 70}};
};

TEST_F(RepeatTest, AftSimple) { ExpectAft(0); }
TEST_F(RepeatTest, AftLocal) { ExpectAft(32); }
TEST_F(RepeatTest, AftWithALongWindow) { ExpectAft(300); }

TEST_F(RepeatTest, AftConv) {
  for (const int64_t heads : {2, 64}) {
    const DeviceArray<float> filter(random_.Normals(7 * heads));
    ConvModel model;
    model.hid = kHid;
    model.heads = heads;
    model.taps = 7;
    model.filter = filter.get();
    ExpectSameBits(2 * kHid + heads, model.layout().Floats(),
                   ConvPrefillWorkspaceFloats(model, kRows, kTokens),
                   [&](In in, State state, Out y, float* workspace) {
                     return ConvPrefill(model, chunks(), in, state, y, workspace, nullptr);
                   });
    ExpectSameBits(2 * kHid + heads, model.layout().Floats(), 0,
                   [&](In in, State state, Out y, float*) {
                     return ConvStep(model, steps(), in, state, y, nullptr);
                   });
  }
}

TEST_F(RepeatTest, Attention) {
  for (const int64_t block_size : {0, 32}) {
    AttentionParams params;
    params.heads = 2;
    params.score_width = kHid / 2;
    params.value_width = kHid / 2;
    params.block_size = block_size;
    params.global_token = block_size > 0;
    params.capacity = 700;  // more than one part of a context
    const AttentionStateLayout layout(params);
    ExpectSameBits(3 * kHid, layout.Floats(),
                   AttentionPrefillWorkspaceFloats(params, kRows, kTokens),
                   [&](In in, State state, Out y, float* workspace) {
                     return AttentionPrefill(params, chunks(), in, state, y, workspace, nullptr);
                   });
    ExpectSameBits(3 * kHid, layout.Floats(), AttentionStepWorkspaceFloats(params, kRows),
                   [&](In in, State state, Out y, float* workspace) {
                     return AttentionStep(params, steps(), in, state, y, workspace, nullptr);
                   });
  }
}

}  // namespace
}  // namespace aft::kernels::cuda
