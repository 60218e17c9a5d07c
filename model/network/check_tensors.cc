#include "model/network/check_tensors.h"

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/aminmax.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/config/tensors.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

// Returns a message that says what is wrong with the numbers of `tensor`, or "".
std::string Complaint(const TensorSpec& spec, const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kFloat) {
    return absl::StrCat(spec.name, " is ", c10::toString(tensor.scalar_type()), ", not F32");
  }
  if (!tensor.is_contiguous() || !tensor.device().is_cpu()) {
    return absl::StrCat(spec.name, " is not contiguous on the CPU");
  }
  if (!AllFinite(tensor)) {
    return absl::StrCat(spec.name, " holds a value that is not finite");
  }
  return "";
}

// The first complaints, and the number of all. A file may give rise to millions of them.
class Complaints {
 public:
  void Add(std::string complaint) {
    constexpr size_t kNamed = 16;
    if (++count_ <= kNamed) named_.push_back(std::move(complaint));
  }
  bool empty() const { return count_ == 0; }
  absl::Status Error() const {
    const size_t more = count_ - named_.size();
    return absl::DataLossError(absl::StrCat(absl::StrJoin(named_, "; "),
                                            more > 0 ? absl::StrCat("; and ", more, " more") : ""));
  }

 private:
  std::vector<std::string> named_;
  size_t count_ = 0;
};

}  // namespace

bool AllFinite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  // Unlike at::isfinite this makes no tensor of that size, and reads the numbers once. NaN is its
  // own least and greatest number.
  const auto [least, greatest] = at::aminmax(tensor);
  return std::isfinite(least.item<float>()) && std::isfinite(greatest.item<float>());
}

absl::StatusOr<uint64_t> CheckTensors(const NetworkConfig& config, const TensorSource& tensors) {
  std::map<std::string, TensorSpec> missing;
  for (TensorSpec& spec : ExpectedTensors(config)) missing.emplace(spec.name, std::move(spec));
  Complaints complaints;
  uint64_t hash = XxHash64(FormatNetworkConfig(config), 0);
  for (const std::string& name : tensors.names()) {
    const auto spec = missing.extract(name);
    if (spec.empty()) {
      complaints.Add(ShownTensorName(name) + " is not part of a network with this config");
      continue;
    }
    // A tensor of another shape may be of any size, so it is not read.
    if (const auto shape = tensors.Shape(name); shape != spec.mapped().shape) {
      complaints.Add(absl::StrCat(name, " has shape [", absl::StrJoin(shape, ", "),
                                  "], the config asks for [",
                                  absl::StrJoin(spec.mapped().shape, ", "), "]"));
      continue;
    }
    AFT_ASSIGN_OR_RETURN(const at::Tensor tensor, tensors.Read(name));
    std::string complaint = Complaint(spec.mapped(), tensor);
    if (!complaint.empty()) {
      complaints.Add(std::move(complaint));
      continue;
    }
    hash = XxHash64(name, hash);
    hash = XxHash64({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}, hash);
  }
  for (const auto& [name, spec] : missing) complaints.Add(name + " is missing");
  if (complaints.empty()) return hash;
  return complaints.Error();
}

absl::Status CheckFormat(const NetworkConfig& config, Number format) {
  const FormatSpec& spec = SpecOf(format);
  if (spec.most_inputs == 0 || config.d_ff <= spec.most_inputs) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("d_ff: at most ", spec.most_inputs, " with ",
                                                 spec.name, " weights, got ", config.d_ff));
}

}  // namespace aft
