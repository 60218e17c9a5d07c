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

// Floats in the host's memory, which a device may still be copying there. Immutable and
// thread-safe. They may be released at any time, and after the device.
class HostFloats {
 public:
  virtual ~HostFloats() = default;
  virtual int64_t bytes() const = 0;
  // Waits for the copy. Errors are those of the device.
  virtual absl::StatusOr<const float*> Get() const = 0;
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

  // Begins to copy `floats`, of this device's memory, to the host. The copy is of what they hold
  // after all work that was queued before. Work that is queued later does not wait for it, and must
  // not change them. RESOURCE_EXHAUSTED: there is not enough memory.
  virtual absl::StatusOr<std::shared_ptr<const HostFloats>> CopyToHost(DeviceFloats floats) = 0;

  // Queues a copy of host memory to the device. The caller may change `from` at once.
  virtual absl::Status CopyFromHost(void* to, const void* from, int64_t bytes) = 0;

  // Waits for all queued work. After an error the device does not recover, and every later call
  // fails too.
  virtual absl::Status Synchronize() = 0;
};

// The host's memory. Thread-safe.
Device& Host();

}  // namespace aft
