// States on their way between a device and the host, on a device that is late.

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "c10/core/Allocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/gpu/gpu_model_runner.h"
#include "tests/gpu_model/runner_pair.h"
#include "tests/support/collect.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

class GpuStatesTest : public RunnerPairFixture {};

// States leave the device and return to it while it works. The copy to the host is made when it is
// asked for, after the slot has changed.
TEST_F(GpuStatesTest, MovingAStateDoesNotWaitForTheDevice) {
  for (const MixerKind kind : {MixerKind::kAftLocal, MixerKind::kDotProduct}) {
    config_.mixer = {.kind = kind, .window = kind == MixerKind::kAftLocal ? 5 : 0};
    config_.max_seq_len = 40;
    DrawWeights();
    const auto gpu = Gpu();
    const std::vector<TokenId> prompt = RandomText(9);
    Bind(*gpu, 0, Greedy());
    Step(*gpu, {{{0, 0, prompt, RowOutput::kNone}}});
    const std::vector<SampledToken> expected = Continue(*gpu, 0, 9, 1, 4);
    Bind(*gpu, 0, Greedy());
    Step(*gpu, {{{0, 0, prompt, RowOutput::kNone}}});

    const int waits = device_->waits;
    const auto step = gpu->Submit({{{1, 0, {1, 2}, RowOutput::kLast}}});
    ASSERT_TRUE(step.ok());
    const std::shared_ptr<const KeptState> kept = Keep(*gpu, 0, KeptIn::kHost);
    ASSERT_NE(kept, nullptr);
    EXPECT_TRUE(Collect(*gpu, *step).ok());
    Generate(*gpu, 0, RandomText(12), 3, Warm(1));
    Bind(*gpu, 2, kept.get(), {Greedy()});
    {
      const std::string snapshot = kept->Snapshot().value_or("");
      Bind(*gpu, 3, snapshot, {Greedy()});
    }  // the caller may release the bytes at once
    SamplingParams penalties = Greedy();
    penalties.presence_penalty = 0.1F;
    Bind(*gpu, 4, kept.get(), {penalties, 0, std::vector<TokenUse>{{1, 0}}});
    EXPECT_TRUE(Same(Continue(*gpu, 2, 9, 1, 4), expected));
    EXPECT_TRUE(Same(Continue(*gpu, 3, 9, 1, 4), expected));
    EXPECT_EQ(device_->waits, waits);
  }
}

TEST_F(GpuStatesTest, AKeptStateOfALostDeviceIsAnError) {
  const auto gpu = Gpu();
  Generate(*gpu, 0, RandomText(9), 3, Warm(1));
  const std::shared_ptr<const KeptState> kept = Keep(*gpu, 0, KeptIn::kHost);
  ASSERT_NE(kept, nullptr);
  device_->lost = true;
  EXPECT_FALSE(kept->Snapshot().ok());
  EXPECT_FALSE(gpu->KeepSlot(0, KeptIn::kHost).ok());
}

// LibTorch's allocators throw when they release memory of a lost device, which would end the
// process in a tensor's destructor.
TEST_F(GpuStatesTest, ReleasingMemoryOfALostDeviceDoesNotEndTheProcess) {
  int releases = 0;
  absl::StatusOr<DeviceFloats> floats = MakeTestQueue()->Allocate(1, "floats", /*lazy=*/false);
  ASSERT_TRUE(floats.ok()) << floats.status();
  static_cast<at::Tensor*>(floats->owner.get())
      ->storage()
      .set_data_ptr_noswap(c10::DataPtr(
          floats->data, &releases,
          [](void* count) {
            ++*static_cast<int*>(count);
            throw std::runtime_error("an illegal address");
          },
          at::kCPU));
  floats = DeviceFloats{};
  EXPECT_EQ(releases, 1);
}

// The device may have no memory for a copy that is on its way to the host.
TEST_F(GpuStatesTest, AStateIsKeptOnTheHostWithoutMemoryOnTheDevice) {
  const auto gpu = Gpu();
  Generate(*gpu, 0, RandomText(9), 3, Warm(1));
  const std::string snapshot = SnapshotOf(*gpu, 0);
  device_->full = true;
  EXPECT_EQ(gpu->KeepSlot(0, KeptIn::kDevice).status().code(),
            absl::StatusCode::kResourceExhausted);
  const int waits = device_->waits;
  EXPECT_EQ(SnapshotOf(*gpu, 0), snapshot);
  EXPECT_EQ(device_->waits, waits + 1);
}

// Lack of memory ends one request. It is not an error of the server.
TEST_F(GpuStatesTest, ABindingWithoutMemoryIsResourceExhausted) {
  const auto gpu = Gpu();
  Generate(*gpu, 0, RandomText(9), 3, Warm(1));
  const std::string snapshot = SnapshotOf(*gpu, 0);
  device_->full = true;
  EXPECT_THAT(
      gpu->BindSlot(1, snapshot, {Greedy()}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("state of a sequence: full")));
  device_->full = false;
  Bind(*gpu, 1, snapshot, {Greedy()});
  EXPECT_EQ(SnapshotOf(*gpu, 1), snapshot);
}

}  // namespace
}  // namespace aft
