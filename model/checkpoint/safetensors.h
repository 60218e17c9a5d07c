#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/progress.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/checkpoint/tensor_file.h"

namespace aft {

using TensorMap = std::map<std::string, at::Tensor>;

// A tensor that is made when it is written, so that the tensors of a file need not all be in memory
// at once.
struct DeferredTensor {
  DeferredTensor() = default;
  DeferredTensor(at::ScalarType t, std::vector<int64_t> s,
                 std::function<absl::StatusOr<at::Tensor>()> m)
      : type(t), shape(std::move(s)), make(std::move(m)) {}
  // A tensor that has been made.
  DeferredTensor(const at::Tensor& tensor);  // NOLINT(google-explicit-constructor)

  int64_t bytes() const;

  at::ScalarType type = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  std::function<absl::StatusOr<at::Tensor>()> make;  // of this type and shape
};
using DeferredTensors = std::map<std::string, DeferredTensor>;

// A .safetensors file (8-byte header length, JSON header, little-endian data) whose tensors are
// read when they are asked for. The file is not trusted: the header may have at most 100 MB, every
// offset is checked (in range, shape x dtype = bytes, no overlap, no gap), and duplicate names are
// refused. Dtypes: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL. Thread-safe. Throws nothing.
class SafetensorsReader {
 public:
  // Reads and checks the header. Errors: NOT_FOUND (no file), DATA_LOSS naming file, tensor and
  // reason, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }

  // REQUIRES: the header has `name`. The result and the errors are those of
  // TensorFile::ReadTensor; the errors name file and tensor.
  absl::StatusOr<at::Tensor> Read(const std::string& name) const;

  // Reads `count` numbers of a tensor from number `first` on, row after row: [count].
  absl::StatusOr<at::Tensor> ReadPart(const std::string& name, int64_t first, int64_t count) const;

 private:
  SafetensorsReader() = default;
  absl::Status ReadHeader();

  std::shared_ptr<const TensorFile> file_;
  SafetensorsHeader header_;
  int64_t data_start_ = 0;
};

struct SafetensorsFile {
  TensorMap tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Reads a whole file. The errors are those of SafetensorsReader.
absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path);

// Writes a file atomically (WriteFileAtomically). Makes the tensors in the order of their names,
// each once, and has only one of them in memory. They may be on any device; one that is not
// contiguous is copied. Errors: INVALID_ARGUMENT naming the tensor (a dtype that is not listed
// above, sparse, undefined, name not UTF-8); those of making a tensor; otherwise those of the file
// system. `progress`, if not null, gets the bytes written. Throws nothing.
absl::Status StreamSafetensors(const std::string& path, const DeferredTensors& tensors,
                               const std::map<std::string, std::string>& metadata = {},
                               Progress* progress = nullptr);

// Writes tensors that are in memory.
absl::Status WriteSafetensors(const std::string& path, const TensorMap& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace aft
