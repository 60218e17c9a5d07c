// Tests of the real queue, on a GPU.

#include "model/gpu/cuda_queue.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "ATen/ops/empty.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "absl/status/status.h"
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

TEST(CudaQueueTest, WorkRunsAfterACaptureThatFailed) {
  const std::unique_ptr<GpuQueue> queue = MakeTestQueue();
  const auto graph = queue->Capture([] { return absl::InternalError("no work today"); });
  EXPECT_EQ(graph.status(), absl::InternalError("no work today"));
  EXPECT_TRUE(queue->Synchronize().ok());
}

}  // namespace
}  // namespace aft
