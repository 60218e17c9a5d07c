#include "model/checkpoint/tensor_source.h"

#include "absl/strings/match.h"
#include "base/status_macros.h"

namespace aft {

TensorSource::TensorSource(const TensorMap& tensors)
    : read_([&tensors](const std::string& name) { return tensors.at(name); }) {
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

}  // namespace aft
