#include "model/checkpoint/tensor_source.h"

#include "absl/strings/match.h"
#include "base/status_macros.h"

namespace aft {

TensorSource::TensorSource(const TensorMap& tensors)
    : read_([&tensors](const std::string& name) { return tensors.at(name); }),
      shape_([&tensors](const std::string& name) { return tensors.at(name).sizes().vec(); }) {
  for (const auto& [name, tensor] : tensors) names_.push_back(name);
}

absl::StatusOr<TensorMap> TensorSource::ReadAll(absl::string_view prefix) const {
  TensorMap tensors;
  for (const std::string& name : names_) {
    if (!absl::StartsWith(name, prefix)) continue;
    AFT_ASSIGN_OR_RETURN(tensors[name], Read(name));
  }
  return tensors;
}

TensorSource WithProgress(TensorSource source, Progress* progress) {
  if (progress == nullptr) return source;
  std::vector<std::string> names = source.names();
  const auto shape = [source](const std::string& name) { return source.Shape(name); };
  const auto read = [source = std::move(source),
                     progress](const std::string& name) -> absl::StatusOr<at::Tensor> {
    AFT_ASSIGN_OR_RETURN(at::Tensor tensor, source.Read(name));
    progress->Add(static_cast<int64_t>(tensor.nbytes()));
    return tensor;
  };
  return TensorSource(std::move(names), read, shape);
}

}  // namespace aft
