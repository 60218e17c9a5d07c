// Tests of the real queue, on a GPU.

#include "model/gpu/cuda_queue.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "gtest/gtest.h"
#include "tests/gpu_model/test_queue.h"

namespace aft {
namespace {

TEST(CudaQueueTest, MemoryThatLibTorchHoldsUnusedIsFree) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  const int64_t before = queue->free_bytes();
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(queue->device());
  at::Tensor tensor = at::empty({kBytes}, options);
  EXPECT_LE(queue->free_bytes(), before - kBytes);
  tensor = at::Tensor();
  EXPECT_GT(queue->free_bytes(), before - kBytes / 2);
}

// LibTorch cuts two MiB from a segment of 20. Nothing else of that segment is free, because a
// larger allocation cannot have it.
TEST(CudaQueueTest, TheRestOfASegmentInUseIsNotFree) {
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  const at::Tensor tensor =
      at::empty({int64_t{2} << 20}, at::TensorOptions(at::kByte).device(queue->device()));
  c10::cuda::CUDACachingAllocator::emptyCache();
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_LT(queue->free_bytes(), static_cast<int64_t>(free) + (int64_t{8} << 20));
}

TEST(CudaQueueTest, ProductsOf16BitsAreSummedInFp32) {
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  constexpr auto kNarrowSums = at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
  EXPECT_NE(at::globalContext().allowBF16ReductionCuBLAS(), kNarrowSums);
  EXPECT_NE(at::globalContext().allowFP16ReductionCuBLAS(), kNarrowSums);
}

TEST(CudaQueueTest, AnyThreadMayUseIt) {
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  float sum = 0;
  std::thread([&] {
    at::Tensor y;
    const absl::Status status = queue->Run([&] {
      const at::Tensor x =
          at::ones({16, 16}, at::TensorOptions(at::kFloat).device(queue->device()));
      y = at::mm(x, x);
      return queue->Copy(&sum, y.const_data_ptr(), sizeof(sum));
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(queue->Synchronize().ok());
  }).join();
  EXPECT_EQ(sum, 16.0F);
}

TEST(CudaQueueTest, EventsMeasureSeconds) {
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  const auto begin = queue->MakeEvent();
  const auto end = queue->MakeEvent();
  ASSERT_TRUE(begin.ok() && end.ok());
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE((*begin)->Record().ok() && (*end)->Record().ok() && (*end)->Wait().ok());
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  EXPECT_GT((*end)->SecondsSince(**begin), 0);
  EXPECT_LE((*end)->SecondsSince(**begin), waited.count());
}

// CUDA refuses pinned memory of this size, and LibTorch reports that by another exception than for
// memory of the device.
TEST(CudaQueueTest, LackOfPinnedMemoryIsResourceExhausted) {
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  float number = 0;
  const absl::Status status = queue->CopyFromHost(&number, &number, int64_t{1} << 50);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(queue->Synchronize().ok());
}

// The source is released while the copy runs, which takes milliseconds. Memory of its size is then
// allocated and zeroed at once.
TEST(CudaQueueTest, ACopyToTheHostKeepsItsSourceAndReportsAllItsMemory) {
  constexpr int64_t kFloats = (int64_t{1} << 25) + 1;
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  absl::StatusOr<DeviceFloats> floats = queue->Allocate(kFloats, "floats", /*lazy=*/false);
  ASSERT_TRUE(floats.ok()) << floats.status();
  ASSERT_TRUE(queue
                  ->Run([&] {
                    static_cast<at::Tensor*>(floats->owner.get())->fill_(1);
                    return absl::OkStatus();
                  })
                  .ok());
  const auto copy = queue->CopyToHost(*std::move(floats));
  ASSERT_TRUE(copy.ok()) << copy.status();
  ASSERT_TRUE(queue->Allocate(kFloats, "zeros", /*lazy=*/false).ok());
  EXPECT_EQ((*copy)->bytes(), int64_t{1} << 28);  // pinned memory is rounded to a power of two
  const absl::StatusOr<const float*> copied = (*copy)->Get();
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(std::count(*copied, *copied + kFloats, 1.0F), kFloats);
}

// The work takes the device some ten milliseconds. LibTorch has the pinned memory already, so the
// copy could begin at once.
TEST(CudaQueueTest, ACopyToTheHostComesAfterTheWorkThatWasQueuedBefore) {
  constexpr int64_t kFloats = int64_t{1} << 25;
  constexpr int kFills = 200;
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  const absl::StatusOr<DeviceFloats> floats = queue->Allocate(kFloats, "floats", /*lazy=*/false);
  ASSERT_TRUE(floats.ok()) << floats.status();
  ASSERT_TRUE(queue->CopyToHost(*floats).value()->Get().ok());
  const absl::Status filled = queue->Run([&] {
    for (int i = 1; i <= kFills; ++i) static_cast<at::Tensor*>(floats->owner.get())->fill_(i);
    return absl::OkStatus();
  });
  ASSERT_TRUE(filled.ok()) << filled;
  const auto copy = queue->CopyToHost(*floats);
  ASSERT_TRUE(copy.ok()) << copy.status();
  const absl::StatusOr<const float*> copied = (*copy)->Get();
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(std::count(*copied, *copied + kFloats, static_cast<float>(kFills)), kFloats);
}

// LibTorch's pool has 32 streams. A model that is loaded must not capture the work of one that
// serves.
TEST(CudaQueueTest, QueuesShareNoStreamAndLaterOnesUseTheStreamsOfThoseThatEnded) {
  const std::unique_ptr<GpuQueue> kept = MakeTestQueue();
  constexpr size_t kQueues = 40;
  const auto streams = [] {
    std::vector<std::unique_ptr<GpuQueue>> queues;
    std::set<kernels::cuda::Stream> all;
    while (queues.size() < kQueues) {
      queues.push_back(MakeTestQueue());
      all.insert(queues.back()->stream());
    }
    return all;
  };
  const std::set<kernels::cuda::Stream> first = streams();
  EXPECT_EQ(first.size(), kQueues);
  EXPECT_FALSE(first.contains(kept->stream()));
  EXPECT_EQ(streams(), first);
}

TEST(CudaQueueTest, WorkRunsAfterACaptureThatFailed) {
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  const auto graph = queue->Capture([] { return absl::InternalError("no work today"); });
  EXPECT_EQ(graph.status(), absl::InternalError("no work today"));
  EXPECT_TRUE(queue->Synchronize().ok());
}

// Ends the process with 0 if calls fail after an illegal address, and all releases still return.
[[noreturn]] void LoseTheDeviceAndReleaseAll() {
  std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  DeviceFloats floats = queue->Allocate(1, "floats", /*lazy=*/false).value();
  std::shared_ptr<const HostFloats> copy = queue->CopyToHost(floats).value();
  std::unique_ptr<GpuEvent> event = queue->MakeEvent().value();
  const bool copied = copy->Get().ok();
  queue
      ->Run([&] {
        at::for_blob(std::bit_cast<void*>(uintptr_t{8}), {1})
            .options(at::TensorOptions(at::kFloat).device(queue->device()))
            .target_device(queue->device())
            .make_tensor()
            .fill_(1);
        return absl::OkStatus();
      })
      .IgnoreError();
  const bool lost =
      !queue->Synchronize().ok() && !event->Record().ok() && !queue->CopyToHost(floats).ok();
  copy.reset();
  floats = {};
  event.reset();
  queue.reset();
  std::_Exit(copied && lost ? 0 : 1);
}

// A process of its own has the fault, because CUDA refuses all its later calls.
TEST(CudaQueueDeathTest, ALostDeviceDoesNotEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(LoseTheDeviceAndReleaseAll(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace aft
