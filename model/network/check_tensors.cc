#include "model/network/check_tensors.h"

#include <set>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/isfinite.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/config/tensors.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

// What is wrong with `tensor`, or empty.
std::string Complaint(const TensorSpec& spec, const at::Tensor& tensor) {
  if (tensor.sizes() != at::IntArrayRef(spec.shape)) {
    return absl::StrCat(spec.name, " has shape [", absl::StrJoin(tensor.sizes(), ", "),
                        "], the config asks for [", absl::StrJoin(spec.shape, ", "), "]");
  }
  if (tensor.scalar_type() != at::kFloat) {
    return absl::StrCat(spec.name, " is ", c10::toString(tensor.scalar_type()), ", not F32");
  }
  if (!tensor.is_contiguous() || !tensor.device().is_cpu()) {
    return absl::StrCat(spec.name, " is not contiguous on the CPU");
  }
  if (!at::isfinite(tensor).all().item<bool>()) {
    return absl::StrCat(spec.name, " holds a value that is not finite");
  }
  return "";
}

}  // namespace

absl::Status CheckTensors(const NetworkConfig& config, const TensorMap& tensors) {
  std::vector<std::string> complaints;
  std::set<std::string> known;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    known.insert(spec.name);
    const auto tensor = tensors.find(spec.name);
    std::string complaint =
        tensor == tensors.end() ? spec.name + " is missing" : Complaint(spec, tensor->second);
    if (!complaint.empty()) complaints.push_back(std::move(complaint));
  }
  for (const auto& [name, tensor] : tensors) {
    if (known.count(name) == 0) {
      complaints.push_back(absl::StrCat(name, " is not part of a network with this config"));
    }
  }
  if (complaints.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrJoin(complaints, "; "));
}

uint64_t NetworkFingerprint(const NetworkConfig& config, const TensorMap& tensors) {
  uint64_t hash = XxHash64(FormatNetworkConfig(config), 0);
  for (const auto& [name, tensor] : tensors) {
    hash = XxHash64(name, hash);
    hash = XxHash64({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}, hash);
  }
  return hash;
}

}  // namespace aft
