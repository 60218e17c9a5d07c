#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/kernels/cuda/types.h"
#include "model/state/device.h"

namespace aft {

// A point in the work of a queue.
class GpuEvent {
 public:
  virtual ~GpuEvent() = default;
  virtual absl::Status Record() = 0;
  virtual absl::Status Wait() = 0;  // until the device has passed the last Record
  // Seconds on the device between two recorded and passed events. REQUIRES: both of one queue.
  virtual double SecondsSince(const GpuEvent& earlier) const = 0;
};

// Work that was queued once and can be queued again in one call, with the same addresses.
class GpuGraph {
 public:
  virtual ~GpuGraph() = default;
  virtual absl::Status Launch() = 0;
};

// One stream of one GPU, and another one for copies to the host, which no other queue has at the
// same time: everything that a runner needs of a device in addition to kernels and LibTorch's
// operators. Implementations: cuda_queue.h, and for tests without a GPU
// tests/support/cuda_on_cpu/host_queue.h. Thread-compatible.
class GpuQueue : public Device {
 public:
  virtual at::Device device() const = 0;  // of the tensors that kernels and operators work on
  virtual kernels::cuda::Stream stream() const = 0;
  virtual std::string name() const = 0;  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // free_bytes: memory that an allocation can get, from the device or from what LibTorch holds
  // unused. total_bytes: all memory of the device.
  virtual int64_t free_bytes() const = 0;
  virtual int64_t total_bytes() const = 0;

  // Runs `work` with the stream current for LibTorch on this thread, in inference mode, and turns
  // exceptions into a status (out of memory: RESOURCE_EXHAUSTED).
  virtual absl::Status Run(absl::FunctionRef<absl::Status()> work) = 0;

  // Allocates uninitialised bytes on the host. The device can copy to and from them without
  // waiting.
  virtual absl::StatusOr<at::Tensor> HostBuffer(int64_t bytes) = 0;

  // Device::Allocate. Memory is never lazy. (Copy may wait if host memory is not a HostBuffer, and
  // CopyFromHost and CopyToHost never wait for the device.)
  absl::StatusOr<DeviceFloats> Allocate(int64_t floats, absl::string_view what, bool lazy) final;

  virtual absl::StatusOr<std::unique_ptr<GpuEvent>> MakeEvent() = 0;

  // Records the work that `work` queues, without running it. `work` must have run before (so that
  // LibTorch has its workspaces), must allocate nothing that it does not keep, and must not wait.
  // It is owned, because an implementation without graphs calls it again at each Launch. So it must
  // queue the same every time, and refer only to what outlives the graph.
  virtual absl::StatusOr<std::unique_ptr<GpuGraph>> Capture(std::function<absl::Status()> work) = 0;
};

}  // namespace aft
