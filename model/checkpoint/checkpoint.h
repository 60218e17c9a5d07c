#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

namespace aft {

// Names of the files in a checkpoint's folder.
inline constexpr char kConfigFileName[] = "config.json";
inline constexpr char kWeightsFileName[] = "model.safetensors";

struct CheckpointFile {
  NetworkConfig config;
  TensorSource tensors;
  std::map<std::string, std::string> metadata;  // of the weights file; ours to fill, e.g. "step"
  Number weight_format = Number::kFp32;         // StoredFormat
  int64_t weight_bytes = 0;                     // as stored
};

// Reads and validates the config and the weights' header; the tensors are read as they are asked
// for, matrices in fewer bits (stored_weights.h) as fp32. Whether they are those that the config
// asks for is checked by who builds a network from them. Errors start with the file: NOT_FOUND
// (file or folder missing), INVALID_ARGUMENT (config refused, names the key), DATA_LOSS (weights
// corrupt, names the tensor), RESOURCE_EXHAUSTED.
absl::StatusOr<CheckpointFile> OpenCheckpoint(const std::string& dir);

// The same with all tensors in memory.
struct Checkpoint {
  NetworkConfig config;
  TensorMap tensors;
  std::map<std::string, std::string> metadata;
};
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& dir);

// Creates the folder if needed and writes the weights, then the config, each of them atomically.
// Errors: INVALID_ARGUMENT when the config would not be accepted by ReadCheckpoint or a tensor
// cannot be stored (nothing is written then); otherwise that of the file system.
absl::Status WriteCheckpoint(const std::string& dir, const NetworkConfig& config,
                             const TensorMap& tensors,
                             const std::map<std::string, std::string>& metadata = {});

}  // namespace aft
