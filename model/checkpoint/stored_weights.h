#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

// Tensors that a checkpoint's file holds in fewer bits: BF16, F16, or a matrix as I8 [out, in] with
// its scales in "NAME.scale", F32 [out]: weight = scale * integer. fp32 holds all of these exactly.
// BF16 and I8 matrices are what weight_format "bf16" or "int8" makes of the fp32 matrices. So a
// model that is loaded with that format is the same, bit for bit, from either file.
namespace aft {

// The file's tensors as all other code knows them: fp32. DATA_LOSS names a tensor of integers
// without scales that fit it.
absl::StatusOr<TensorSource> ExpandedTensors(std::shared_ptr<const SafetensorsReader> file);

// The format that all matrices of the network have in the file. When they differ: fp32, which holds
// all of them exactly.
Number StoredFormat(const NetworkConfig& config, const SafetensorsHeader& header);

// The tensors of a network (CheckTensors) as a file with matrices in `format` holds them. kFp32
// leaves them as they are. A tensor is read when it is made. REQUIRES: not kFp16.
DeferredTensors StoredWeights(const NetworkConfig& config, TensorSource tensors, Number format);

}  // namespace aft
