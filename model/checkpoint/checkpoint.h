#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"

namespace aft {

// Names of the files in a checkpoint's folder.
inline constexpr char kConfigFileName[] = "config.json";
inline constexpr char kWeightsFileName[] = "model.safetensors";

struct Checkpoint {
  NetworkConfig config;
  TensorMap tensors;
  std::map<std::string, std::string> metadata;  // of the weights file; ours to fill, e.g. "step"
};

// Reads and validates both files; matrices in fewer bits (stored_weights.h) become fp32. Whether
// the tensors are those that the config asks for is checked by who builds a network from them.
// Errors start with the file: NOT_FOUND (file or folder missing), INVALID_ARGUMENT (config refused,
// names the key), DATA_LOSS (weights corrupt, names the tensor), RESOURCE_EXHAUSTED.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& dir);

// Creates the folder if needed and writes the weights, then the config, each of them atomically.
// Errors: INVALID_ARGUMENT when the config would not be accepted by ReadCheckpoint or a tensor
// cannot be stored (nothing is written then); otherwise that of the file system.
absl::Status WriteCheckpoint(const std::string& dir, const NetworkConfig& config,
                             const TensorMap& tensors,
                             const std::map<std::string, std::string>& metadata = {});

}  // namespace aft
