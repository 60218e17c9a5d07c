#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

namespace aft {

// Names of the files in a checkpoint's folder.
inline constexpr char kConfigFileName[] = "config.json";
inline constexpr char kWeightsFileName[] = "model.safetensors";

// A checkpoint may have tuned states of an RWKV-7 (state tuning), each in a file of this name with
// a tensor InitialStateName of every layer, [heads, N, N] like the state of the kind wkv7. The name
// of a state has 1 to 64 letters, digits, dots, hyphens and underscores.
std::string StateFileName(absl::string_view state);
std::string InitialStateName(int64_t layer);
bool IsStateName(absl::string_view name);

// INVALID_ARGUMENT, which begins with `path`, if a network of this config takes no tuned states. A
// text that begins from one begins at position 1, so the network must not number its positions.
absl::Status CheckTakesStates(const NetworkConfig& config, absl::string_view path);

// The files with tuned states in a checkpoint's folder: name of the state -> path. Files with other
// names are left out. Errors: those of the file system.
absl::StatusOr<std::map<std::string, std::string>> FindStateFiles(const std::string& dir);

// Reads a file with a tuned state for a network of this config: the fp32 tables of its layers,
// whose values are finite. The file must have nothing else. Errors name file and tensor:
// INVALID_ARGUMENT (of another network, or the network takes none); those of SafetensorsReader.
absl::StatusOr<std::vector<at::Tensor>> ReadStateFile(const std::string& path,
                                                      const NetworkConfig& config);

struct CheckpointFile {
  NetworkConfig config;
  TensorSource tensors;
  std::map<std::string, std::string> metadata;  // of the weights file, e.g. "step"
  Number weight_format = Number::kFp32;         // see StoredFormat
  int64_t weight_bytes = 0;                     // as stored
};

// Reads and validates the config and the weights' header. A tensor is read when it is asked for;
// one that is stored in fewer bits (stored_weights.h) becomes fp32. Code that builds a network from
// the tensors checks whether they are those that the config asks for. Errors start with the name of
// the file: NOT_FOUND (file or folder missing), INVALID_ARGUMENT (config refused, names the key),
// DATA_LOSS (weights corrupt, names the tensor), RESOURCE_EXHAUSTED.
absl::StatusOr<CheckpointFile> OpenCheckpoint(const std::string& dir);

// A checkpoint with all tensors in memory. ReadCheckpoint has the errors of OpenCheckpoint.
struct Checkpoint {
  NetworkConfig config;
  TensorMap tensors;
  std::map<std::string, std::string> metadata;
};
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& dir);

// Creates the folder if needed and writes the weights, then the config, each of them atomically.
// Errors: INVALID_ARGUMENT when the config would not be accepted by ReadCheckpoint; otherwise those
// of StreamSafetensors. Nothing is written after an error of a tensor. `progress`, if
// not null, gets the bytes of the weights that are written.
absl::Status WriteCheckpoint(const std::string& dir, const NetworkConfig& config,
                             const DeferredTensors& tensors,
                             const std::map<std::string, std::string>& metadata = {},
                             Progress* progress = nullptr);
inline absl::Status WriteCheckpoint(const std::string& dir, const NetworkConfig& config,
                                    const TensorMap& tensors,
                                    const std::map<std::string, std::string>& metadata = {}) {
  return WriteCheckpoint(dir, config, DeferredTensors(tensors.begin(), tensors.end()), metadata);
}

}  // namespace aft
