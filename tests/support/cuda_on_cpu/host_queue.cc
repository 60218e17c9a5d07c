#include "tests/support/cuda_on_cpu/host_queue.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "model/runtime/torch_guard.h"

namespace aft {
namespace {

class HostEvent final : public GpuEvent {
 public:
  absl::Status Record() override {
    at_ = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  absl::Status Wait() override { return absl::OkStatus(); }
  double SecondsSince(const GpuEvent& earlier) const override {
    const auto& other = static_cast<const HostEvent&>(earlier);
    return std::chrono::duration<double>(at_ - other.at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

// Copies when it is asked, as late as a device may.
class LateFloats final : public HostFloats {
 public:
  explicit LateFloats(DeviceFloats from) : from_(std::move(from)) {}
  int64_t bytes() const override { return from_.bytes(); }
  absl::StatusOr<const float*> Get() const override {
    std::call_once(copied_, [this] { floats_.assign(from_.data, from_.data + from_.floats); });
    return floats_.data();
  }

 private:
  const DeviceFloats from_;
  mutable std::once_flag copied_;
  mutable std::vector<float> floats_;
};

class HostGraph final : public GpuGraph {
 public:
  HostGraph(HostQueue* queue, std::function<absl::Status()> work)
      : queue_(queue), work_(std::move(work)) {}
  absl::Status Launch() override { return queue_->Run(work_); }

 private:
  HostQueue* const queue_;
  const std::function<absl::Status()> work_;
};

}  // namespace

HostQueue::HostQueue(int64_t free_bytes, int64_t total_bytes)
    : free_bytes_(free_bytes), total_bytes_(total_bytes) {
  at::set_num_threads(1);
}

absl::Status HostQueue::Run(absl::FunctionRef<absl::Status()> work) {
  return GuardTorch([&]() -> absl::Status {
    const c10::InferenceMode inference;
    try {
      return work();
    } catch (const c10::OutOfMemoryError& error) {
      return absl::ResourceExhaustedError(error.what());
    }
  });
}

absl::StatusOr<at::Tensor> HostQueue::HostBuffer(int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}

absl::Status HostQueue::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const HostFloats>> HostQueue::CopyToHost(DeviceFloats floats) {
  return std::make_shared<const LateFloats>(std::move(floats));
}

absl::Status HostQueue::CopyFromHost(void* to, const void* from, int64_t bytes) {
  return Copy(to, from, bytes);
}

absl::StatusOr<std::unique_ptr<GpuEvent>> HostQueue::MakeEvent() {
  return std::make_unique<HostEvent>();
}

absl::StatusOr<std::unique_ptr<GpuGraph>> HostQueue::Capture(std::function<absl::Status()> work) {
  return std::make_unique<HostGraph>(this, std::move(work));
}

}  // namespace aft
