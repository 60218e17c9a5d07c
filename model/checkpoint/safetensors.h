#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace aft {

using TensorMap = std::map<std::string, at::Tensor>;

struct SafetensorsFile {
  TensorMap tensors;                            // contiguous CPU tensors that own their memory
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Reads a whole .safetensors file (8-byte header length, JSON header, little-endian data). The file
// is not trusted: header capped at 100 MB, every offset checked (in range, shape x dtype = bytes,
// no overlap, no gap), duplicate names refused. Dtypes: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.
// Errors: NOT_FOUND (no file), DATA_LOSS naming file, tensor and reason, RESOURCE_EXHAUSTED (no
// memory for a tensor). Throws nothing.
absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path);

// Writes atomically: a temporary file beside `path`, synced, then renamed. Tensors in name order,
// from any device, copied to be contiguous when they are not. Errors: INVALID_ARGUMENT naming the
// tensor (dtype not above, sparse, undefined, name not UTF-8), else the file system's. Throws
// nothing.
absl::Status WriteSafetensors(const std::string& path, const TensorMap& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace aft
