#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

namespace aft {

// Checks a checkpoint's tensors against ExpectedTensors, one at a time: DATA_LOSS names the first
// 16 missing, surplus, misshaped, wrongly typed and non-finite ones, and says how many more there
// are. It reads no tensor of another shape. Other errors are the source's.
//
// Returns the network's fingerprint: a number that changes with the config and with any bit of any
// tensor, the same on every machine. It says whether bytes of a sequence's state belong to this
// model.
absl::StatusOr<uint64_t> CheckTensors(const NetworkConfig& config, const TensorSource& tensors);

// INVALID_ARGUMENT: a matrix has more inputs than weights in this format can have.
absl::Status CheckFormat(const NetworkConfig& config, Number format);

// Whether all numbers are finite in fp32. Takes no memory for a contiguous tensor.
bool AllFinite(const at::Tensor& tensor);

}  // namespace aft
