#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/gpu/gpu_queue.h"

namespace aft {

// A part of a model that needs memory of the device.
struct GpuNeed {
  std::string name;  // "logits of 64 tokens"
  int64_t bytes = 0;
};
// Checks that all of them fit into the device's free memory. RESOURCE_EXHAUSTED lists all needs.
absl::Status CheckFits(const std::vector<GpuNeed>& needs, const GpuQueue& queue);

}  // namespace aft
