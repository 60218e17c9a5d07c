// Tests of the look-ahead sums that mixers keep for the slots of a GPU runner.

#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "model/gpu/gpu_network.h"
#include "tests/gpu_model/runner_pair.h"

namespace aft {
namespace {

class GpuLookaheadTest : public RunnerPairFixture {
 protected:
  GpuLookaheadTest() {
    config_.mixer.window = 20;
    config_.d_model = 32;
  }

  // Expects that the model decodes with look-ahead sums. Returns the bytes of its workspace.
  int64_t ExpectLookahead() {
    const std::unique_ptr<GpuQueue> queue = MakeTestQueue(device_);
    const auto network = GpuModel(*queue);
    EXPECT_TRUE(network.ok()) << network.status();
    if (!network.ok()) return 0;
    EXPECT_GT((*network)->lookahead_rows(), 0);
    return (*network)->workspace_bytes();
  }
};

// The slots are at different ages of their look-ahead sums. In between they are read, forked and
// restored. A prompt's chunk must make the sums invalid.
TEST_F(GpuLookaheadTest, LookaheadFollowsItsSequence) {
  const auto cpu = Cpu();
  const auto gpu = Gpu();
  ExpectLookahead();
  const std::vector<ModelRunner*> both = {cpu.get(), gpu.get()};
  const auto step = [&](const StepInput& input) {
    ExpectNear(Step(*gpu, input), Step(*cpu, input));
  };
  for (ModelRunner* runner : both) {
    for (int32_t slot = 0; slot < kSlots; ++slot) Bind(*runner, slot, Greedy());
  }
  int64_t a = 0;
  int64_t b = 0;
  const auto decode = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      step({{{0, a++, RandomText(1), RowOutput::kScore, RandomText(1)},
             {1, b++, RandomText(1), RowOutput::kScore, RandomText(1)}}});
    }
  };
  decode(10);
  // Slot 0 gets another sequence at a position for which its old sums would still be valid.
  for (ModelRunner* runner : both) {
    Bind(*runner, 0, SnapshotOf(*runner, 1), {Greedy()});
  }
  decode(2);
  for (ModelRunner* runner : both) {
    Bind(*runner, 1, ForkOf{0}, {Greedy()});
    Bind(*runner, 2, SnapshotOf(*runner, 0), {Greedy()});
  }
  decode(2);
  step({{{0, a, RandomText(3), RowOutput::kNone}}});
  a += 3;
  decode(12);
  for (ModelRunner* runner : both) {
    Bind(*runner, 2, ForkOf{0}, {Greedy()});
    Bind(*runner, 3, SnapshotOf(*runner, 1), {Greedy()});
    Bind(*runner, 0, ForkOf{1}, {Greedy()});  // over a slot whose sums are in use
  }
  step({{{2, a, RandomText(1), RowOutput::kScore, RandomText(1)},
         {3, b, RandomText(1), RowOutput::kScore, RandomText(1)}}});
  a = b;
  decode(30);
  for (ModelRunner* runner : both) Bind(*runner, 1, Greedy());
  b = 0;
  decode(3);
  EXPECT_EQ(other_tokens_, 0);
}

// Wide biases need more sums than narrow ones, so the places of the layers' sums differ in size.
TEST_F(GpuLookaheadTest, LayersWithWideAndNarrowBiasesKeepTheirSumsApart) {
  std::vector<int64_t> bytes;
  for (const char* const wide : {"layers.0.mixer.w.band", "layers.1.mixer.w.band"}) {
    SCOPED_TRACE(wide);
    DrawWeights();
    tensors_.at(wide).fill_(30);  // above kernels::kNarrowBias
    bytes.push_back(ExpectLookahead());
    const auto cpu = Cpu();
    const auto gpu = Gpu();
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      Bind(*cpu, slot, Greedy());
      Bind(*gpu, slot, Greedy());
    }
    for (int64_t position = 0; position < 20; ++position) {
      StepInput step;
      for (int32_t slot = 0; slot < kSlots; ++slot) {
        step.rows.push_back({slot, position, RandomText(1), RowOutput::kScore, RandomText(1)});
      }
      ExpectNear(Step(*gpu, step), Step(*cpu, step));
    }
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

}  // namespace
}  // namespace aft
