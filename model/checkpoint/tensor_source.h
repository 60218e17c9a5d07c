#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/progress.h"
#include "model/checkpoint/safetensors.h"

namespace aft {

// A network's tensors by name, contiguous fp32 on the CPU. They need not all be in memory at once:
// code that packs weights reads a layer, packs it and drops it. Thread-safe.
class TensorSource {
 public:
  using ReadOne = std::function<absl::StatusOr<at::Tensor>(const std::string& name)>;
  using ShapeOfOne = std::function<std::vector<int64_t>(const std::string& name)>;

  // REQUIRES: `names` is sorted.
  TensorSource(std::vector<std::string> names, ReadOne read, ShapeOfOne shape)
      : names_(std::move(names)), read_(std::move(read)), shape_(std::move(shape)) {}
  // The tensors of a map, which is borrowed.
  TensorSource(const TensorMap& tensors);  // NOLINT(google-explicit-constructor): is one already

  const std::vector<std::string>& names() const { return names_; }

  // The shape that Read's tensor has, without reading it. REQUIRES: `name` is one of names().
  std::vector<int64_t> Shape(const std::string& name) const { return shape_(name); }

  // REQUIRES: `name` is one of names(). Errors are the file's (SafetensorsReader::Read).
  absl::StatusOr<at::Tensor> Read(const std::string& name) const { return read_(name); }

  // Reads all tensors whose names start with `prefix`.
  absl::StatusOr<TensorMap> ReadAll(absl::string_view prefix = "") const;

 private:
  std::vector<std::string> names_;
  ReadOne read_;
  ShapeOfOne shape_;
};

// A source that reads from `source` and adds the bytes of each tensor to `progress`, if that is not
// null. Thread-compatible then.
TensorSource WithProgress(TensorSource source, Progress* progress);

}  // namespace aft
