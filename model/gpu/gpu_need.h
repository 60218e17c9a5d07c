#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/config/config.h"
#include "model/config/formats.h"
#include "model/gpu/gpu_queue.h"

namespace aft {

// A part of a model that needs memory of the device.
struct GpuNeed {
  std::string name;  // "logits of 64 tokens"
  int64_t bytes = 0;
};

// The bytes of a network's weights on the device, with its matrices in `format`. The position
// biases of AFT are counted as bands (AftBand), which may be far smaller or larger than their form
// in the checkpoint.
int64_t DeviceWeightBytes(const NetworkConfig& config, Number format);

// Memory that a runner leaves free for libraries: workspaces of matrix products for the threads
// that load and run the model, graphs, modules.
GpuNeed KeptForLibraries(const GpuQueue& queue);

// Checks that all of them fit into the device's free memory. RESOURCE_EXHAUSTED lists all needs.
absl::Status CheckFits(const std::vector<GpuNeed>& needs, const GpuQueue& queue);

}  // namespace aft
