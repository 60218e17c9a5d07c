#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// Floats in a device's memory, 64-byte aligned, freed with the last copy of this.
struct DeviceFloats {
  float* data = nullptr;
  int64_t floats = 0;
  std::shared_ptr<void> owner;

  int64_t bytes() const { return floats * static_cast<int64_t>(sizeof(float)); }
};

// Where states live: the host (Host()), or a GPU (model/gpu/gpu_queue.h). Thread-compatible.
class Device {
 public:
  virtual ~Device() = default;

  // RESOURCE_EXHAUSTED names `what` when the memory is not there. Zeroed; but with `lazy` the host
  // reserves memory that holds anything and comes page by page, at the first touch.
  virtual absl::StatusOr<DeviceFloats> Allocate(int64_t floats, absl::string_view what,
                                                bool lazy) = 0;

  // Copies between the host and the device, either way, or within the device. A GPU queues it.
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes) = 0;

  virtual absl::Status Synchronize() = 0;  // waits for what was queued
};

// The host's memory. Thread-safe.
Device& Host();

}  // namespace aft
