#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// The name of a type in a safetensors header ("F32"), or "" for a type that the format does not
// have; and the type of a name that SafetensorsDtypeBytes knows.
const char* SafetensorsDtypeName(at::ScalarType type);
at::ScalarType SafetensorsType(const std::string& dtype);

// A regular file that is open for reading, in any format that holds tensors as plain little-endian
// numbers. Thread-safe.
class TensorFile {
 public:
  // Errors: NOT_FOUND, DATA_LOSS (not a regular file), otherwise those of the file system. They
  // name the file, which those of the other methods do not.
  static absl::StatusOr<std::shared_ptr<const TensorFile>> Open(const std::string& path);

  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // when it was opened

  bool BeginsWith(absl::string_view bytes) const;

  // Reads bytes from `offset` on. DATA_LOSS when the file has become shorter.
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const;

  // Reads a tensor from `offset` on. It is contiguous, on the CPU, and owns its memory. Errors:
  // DATA_LOSS (the file became shorter; a BOOL that is neither 0 nor 1), RESOURCE_EXHAUSTED (no
  // memory for the tensor), otherwise those of the file system.
  absl::StatusOr<at::Tensor> ReadTensor(int64_t offset, at::ScalarType type,
                                        const std::vector<int64_t>& shape) const;

 private:
  TensorFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
  int64_t bytes_ = 0;
};

}  // namespace aft
