#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/gpu/gpu_queue.h"

namespace aft {

// Converts the result of a function below model/kernels/cuda to a status. INTERNAL names the
// operator, and says what the error means or which number it has (cudaError_t; no CUDA header is
// needed for that).
inline absl::Status KernelStatus(int error, absl::string_view name) {
  constexpr int kInvalidValue = 1;
  constexpr int kInvalidConfiguration = 9;
  if (error == 0) return absl::OkStatus();
  if (error == kInvalidValue) {
    return absl::InternalError(absl::StrCat(
        name, ": CUDA error 1: the kernel does not support a size or number format of this model"));
  }
  if (error == kInvalidConfiguration) {
    return absl::InternalError(
        absl::StrCat(name, ": a block needs more shared memory, for this model, than it can have"));
  }
  return absl::InternalError(absl::StrCat(name, ": CUDA error ", error));
}

// Converts an `error` of work on `queue` to the status that a runner reports. It waits until queued
// work no longer uses the runner's arrays. INTERNAL, RESOURCE_EXHAUSTED (as `error`): the device
// can continue. UNAVAILABLE: it cannot (an illegal address, a card that fell off the bus), and
// every later call fails too.
inline absl::Status WorkFailed(absl::string_view work, const absl::Status& error, GpuQueue* queue) {
  const absl::Status device = queue->Synchronize();
  if (device.ok()) {
    const bool no_memory = absl::IsResourceExhausted(error);
    return absl::Status(
        no_memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
        absl::StrCat(work, ": ", error.message()));
  }
  return absl::UnavailableError(
      absl::StrCat(queue->name(), " is lost: ", work, ": ", error.message()));
}

}  // namespace aft
