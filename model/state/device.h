#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// Floats in a device's memory, 64-byte aligned. They are freed with the last copy of this struct.
struct DeviceFloats {
  float* data = nullptr;
  int64_t floats = 0;
  std::shared_ptr<void> owner;

  int64_t bytes() const { return floats * static_cast<int64_t>(sizeof(float)); }
};

// The place of states: the host (Host()), or a GPU (model/gpu/gpu_queue.h). Thread-compatible.
class Device {
 public:
  virtual ~Device() = default;

  // The memory is zeroed. With `lazy` the host only reserves memory: its content is undefined, and
  // pages are assigned at the first touch. RESOURCE_EXHAUSTED names `what`.
  virtual absl::StatusOr<DeviceFloats> Allocate(int64_t floats, absl::string_view what,
                                                bool lazy) = 0;

  // Copies between host and device in either direction, or within the device. A GPU queues it.
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes) = 0;

  virtual absl::Status Synchronize() = 0;  // waits for all queued work
};

// The host's memory. Thread-safe.
Device& Host();

}  // namespace aft
