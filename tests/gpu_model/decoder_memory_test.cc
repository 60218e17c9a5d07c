// What a step on the GPU allocates. Only where the device is the CPU: LibTorch's allocator there
// can be replaced.

#include "ATen/ops/empty.h"
#include "c10/core/CPUAllocator.h"
#include "gtest/gtest.h"
#include "tests/gpu_model/decoder_harness.h"

namespace aft {
namespace {

// Counts what LibTorch allocates on the CPU, which is the device here.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~CountingAllocator() override { c10::SetCPUAllocator(before_); }

  c10::DataPtr allocate(size_t bytes) override {
    ++count_;
    return before_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    before_->copy_data(to, from, bytes);
  }
  int count() const { return count_; }

 private:
  c10::Allocator* const before_;
  int count_ = 0;
};

TEST(GpuDecoderMemory, DecodeStepsAllocateNothing) {
  constexpr int32_t kSlots = 3;
  TestRandom random;
  for (const NetworkCase& network : DecoderCases()) {
    SCOPED_TRACE(network.name);
    const TensorMap tensors = RandomTensors(network.config, random);
    GpuTestDecoder gpu(network.config, tensors, Number::kFp32, kSlots);
    const DeviceStep arrays({{{0, 0, {1}}, {-1, 0, {2}}, {2, 0, {3}}}, {}, {0, 1, 2}});
    ASSERT_TRUE(gpu.Forward(arrays.batch()).ok());
    const CountingAllocator allocator;
    ASSERT_TRUE(gpu.Forward(arrays.batch()).ok());
    ASSERT_TRUE(gpu.queue().Run([&] { return gpu.network().Logits(0, 3).status(); }).ok());
    EXPECT_EQ(allocator.count(), 0);
    const at::Tensor seen = at::empty({1}, at::kFloat);  // it does count
    EXPECT_EQ(allocator.count(), 1);
  }
}

}  // namespace
}  // namespace aft
