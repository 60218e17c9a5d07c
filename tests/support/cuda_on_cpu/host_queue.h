#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "model/gpu/gpu_queue.h"

namespace aft {

// A GpuQueue without a GPU: tensors are on the CPU, kernels are those of aft::cuda_kernels_on_cpu,
// and all work is done when it is queued, but a copy to the host only when it is asked for. A graph
// keeps the work that it was made from and does it again at each launch. Events read a clock.
class HostQueue final : public GpuQueue {
 public:
  static constexpr int64_t kTotalBytes = int64_t{1} << 30;

  // A device of `total_bytes`, of which `free_bytes` are free, whatever is allocated. From here on
  // LibTorch uses one thread, because its small products would wait for other threads on a loaded
  // machine.
  explicit HostQueue(int64_t free_bytes = kTotalBytes, int64_t total_bytes = kTotalBytes);

  at::Device device() const override { return at::kCPU; }
  kernels::cuda::Stream stream() const override { return nullptr; }
  std::string name() const override { return "cuda:0 (a test's CPU)"; }
  int64_t free_bytes() const override { return free_bytes_; }
  int64_t total_bytes() const override { return total_bytes_; }
  absl::Status Run(absl::FunctionRef<absl::Status()> work) override;
  absl::StatusOr<at::Tensor> HostBuffer(int64_t bytes) override;
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::StatusOr<std::shared_ptr<const HostFloats>> CopyToHost(DeviceFloats floats) override;
  absl::Status CopyFromHost(void* to, const void* from, int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<GpuEvent>> MakeEvent() override;
  absl::StatusOr<std::unique_ptr<GpuGraph>> Capture(std::function<absl::Status()> work) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  const int64_t free_bytes_;
  const int64_t total_bytes_;
};

}  // namespace aft
