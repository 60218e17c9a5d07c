#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

// Tensors that a checkpoint's file holds in fewer bits: BF16, F16, or matrices as I8 [out, in]
// beside "NAME.scale", F32 [out]: weight = scale * integer. All are exact in fp32. BF16 and I8
// matrices are what weight_format "bf16" or "int8" makes of the fp32 ones, so that a model loaded
// with that format is the same, bit for bit, from either file.
namespace aft {

// The file's tensors as everybody else knows them: fp32. DATA_LOSS names a tensor of integers
// without scales that fit it.
absl::StatusOr<TensorSource> ExpandedTensors(std::shared_ptr<const SafetensorsReader> file);

// What every matrix of the network has in the file; fp32, which holds them all exactly, where they
// differ.
Number StoredFormat(const NetworkConfig& config, const SafetensorsHeader& header);

// The tensors of a network (CheckTensors) as such a file holds them. kFp32: as they are. REQUIRES:
// not kFp16.
TensorMap StoredWeights(const NetworkConfig& config, const TensorMap& tensors, Number format);

}  // namespace aft
