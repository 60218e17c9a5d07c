#pragma once

#include "absl/status/status.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"

namespace aft {

// Checks a checkpoint's tensors against ExpectedTensors: DATA_LOSS names every missing, surplus,
// misshaped, wrongly typed and non-finite one.
absl::Status CheckTensors(const NetworkConfig& config, const TensorMap& tensors);

// A number that changes with the config and with any bit of any tensor, the same on every machine:
// whether bytes of a sequence's state belong to this model. REQUIRES: CheckTensors.
uint64_t NetworkFingerprint(const NetworkConfig& config, const TensorMap& tensors);

}  // namespace aft
