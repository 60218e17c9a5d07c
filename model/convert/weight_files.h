#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"

namespace aft {

// A package's weights: tensors by name, in one .safetensors file or several (shards), of which each
// is read when it is asked for. Copies share the open files. Thread-safe.
class WeightFiles {
 public:
  struct Entry {
    std::string dtype;  // "F32"
    std::vector<int64_t> shape;
    std::string shard;  // its file's name, where there are several
  };

  WeightFiles(TensorMap tensors);  // NOLINT(google-explicit-constructor): is the same in memory

  // Errors: SafetensorsReader's; RESOURCE_EXHAUSTED when memory does not hold all tensors.
  static absl::StatusOr<WeightFiles> OpenFile(const std::string& path);

  // What Hugging Face's libraries write: `dir`/model.safetensors, or the shards beside
  // `dir`/model.safetensors.index.json: {"metadata": {"total_size": bytes}, "weight_map": {tensor:
  // shard}}. Each shard is a file of that folder and holds the tensors that the index says, and no
  // others; all of them make total_size, if it is there. Links are followed, as in the hub's cache.
  // Errors start with the file: those of OpenFile; DATA_LOSS (index and shards differ), naming
  // the tensor; INVALID_ARGUMENT (no such index, both layouts, a pickle).
  static absl::StatusOr<WeightFiles> OpenFolder(const std::string& dir);

  // The file, or the index: where a tensor is that is missing.
  const std::string& path() const { return paths_.front(); }
  // That, and the shards; none in memory.
  const std::vector<std::string>& paths() const { return paths_; }
  const std::map<std::string, Entry>& entries() const { return entries_; }

  // REQUIRES: there is an entry. Errors: SafetensorsReader::Read's.
  absl::StatusOr<at::Tensor> Read(const std::string& name) const;

 private:
  using Reader = std::shared_ptr<const SafetensorsReader>;

  WeightFiles() = default;
  absl::Status CheckMemory() const;

  std::vector<std::string> paths_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, Reader> readers_;  // by shard
  TensorMap tensors_;                      // in memory, when there are no readers
};

}  // namespace aft
