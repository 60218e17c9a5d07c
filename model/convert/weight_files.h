#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint/safetensors.h"

namespace aft {

// A package's weights: tensors by name, in one file or in several (shards). A file is a
// .safetensors file, or one of torch.save (.pt, .pth, .bin; TorchFile). A tensor is read when it is
// asked for. Copies share the open files. Thread-compatible.
class WeightFiles {
 public:
  struct Entry {
    std::string dtype;  // "F32"
    std::vector<int64_t> shape;
    std::string shard;  // the name of its file, when there are several
    // The bytes that reading it takes: the tensor's, or those of the file with what lies between
    // the tensor's numbers, if these are more. 0: it is in memory.
    int64_t read_bytes = 0;
  };

  WeightFiles(TensorMap tensors);  // NOLINT(google-explicit-constructor): is the same in memory

  // The first bytes of the file say which of the formats it has. `keys` are those of ReadStateDict,
  // and are not for safetensors. Errors name the file: those of SafetensorsReader and of TorchFile;
  // RESOURCE_EXHAUSTED when memory does not hold the largest tensor.
  static absl::StatusOr<WeightFiles> OpenFile(const std::string& path,
                                              absl::Span<const std::string> keys = {});

  // Opens what Hugging Face's libraries write: `dir`/model.safetensors, or several shards and
  // `dir`/model.safetensors.index.json: {"metadata": {"total_size": bytes}, "weight_map": {tensor:
  // shard}}. Each shard is a file of that folder and must have exactly the tensors that the index
  // assigns to it. Together they must have total_size bytes, if the index has it. Links are
  // followed, as in the hub's cache. Without either of the two files, pytorch_model.bin and
  // pytorch_model.bin.index.json are read in the same way. `keys` are those of OpenFile, for every
  // file.
  // Errors start with the file: those of OpenFile; DATA_LOSS (index and shards differ), naming
  // the tensor; INVALID_ARGUMENT (not a valid index, both layouts).
  static absl::StatusOr<WeightFiles> OpenFolder(const std::string& dir,
                                                absl::Span<const std::string> keys = {});

  // The file or the index, for messages about missing tensors. REQUIRES: not in memory.
  const std::string& path() const { return paths_.front(); }
  // path() and the shards; empty in memory.
  const std::vector<std::string>& paths() const { return paths_; }
  const std::map<std::string, Entry>& entries() const { return entries_; }

  // REQUIRES: there is an entry. Errors: those of the file's format.
  absl::StatusOr<at::Tensor> Read(const std::string& name) const;

 private:
  using ReadOne = std::function<absl::StatusOr<at::Tensor>(const std::string& name)>;

  WeightFiles() = default;
  static absl::StatusOr<WeightFiles> OpenShards(const std::string& prefix,
                                                const std::string& index_name,
                                                absl::Span<const std::string> keys);
  absl::Status CheckMemory() const;

  std::vector<std::string> paths_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, ReadOne> readers_;  // by shard
  TensorMap tensors_;                       // in memory, when there are no readers
};

}  // namespace aft
