#include "model/convert/source.h"

#include <cstddef>

#include "ATen/ops/isfinite.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"

namespace aft {
namespace {

bool Fits(at::IntArrayRef sizes, const std::vector<int64_t>& shape) {
  if (sizes.size() != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == Source::kAny ? sizes[i] < 1 : sizes[i] != shape[i]) return false;
  }
  return true;
}

std::string ShownShape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t size) {
                                      absl::StrAppend(out, size == Source::kAny
                                                               ? std::string("any")
                                                               : absl::StrCat(size));
                                    }),
                      "]");
}

}  // namespace

absl::Status TensorError(const std::string& name, const std::string& problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", ShownTensorName(name), "': ", problem));
}

absl::StatusOr<at::Tensor> Source::Find(const std::string& name,
                                        const std::vector<int64_t>& shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return TensorError(name, "is missing");
  if (!Fits(found->second.sizes(), shape)) {
    return TensorError(name, absl::StrCat("has shape [", absl::StrJoin(found->second.sizes(), ", "),
                                          "], expected ", ShownShape(shape)));
  }
  taken_.insert(name);
  return found->second;
}

absl::StatusOr<at::Tensor> Source::Take(const std::string& name,
                                        const std::vector<int64_t>& shape) {
  AFT_ASSIGN_OR_RETURN(const at::Tensor tensor, Find(name, shape));
  if (!tensor.is_floating_point()) {
    return TensorError(
        name, absl::StrCat("holds ", c10::toString(tensor.scalar_type()), ", expected floats"));
  }
  at::Tensor converted = tensor.to(at::kFloat).contiguous();
  if (!at::isfinite(converted).all().item<bool>()) {
    return TensorError(name, "holds a value that is not finite in fp32");
  }
  return converted;
}

absl::StatusOr<at::Tensor> Source::TakeMask(const std::string& name,
                                            const std::vector<int64_t>& shape) {
  AFT_ASSIGN_OR_RETURN(at::Tensor tensor, Find(name, shape));
  if (tensor.scalar_type() != at::kBool) {
    return TensorError(
        name, absl::StrCat("holds ", c10::toString(tensor.scalar_type()), ", expected Bool"));
  }
  return tensor;
}

bool Source::HasPrefix(const std::string& prefix) const {
  const auto first = tensors_.lower_bound(prefix);
  return first != tensors_.end() && first->first.compare(0, prefix.size(), prefix) == 0;
}

absl::Status CopyLinear(Source& source, const std::string& from, const std::string& to, int64_t out,
                        int64_t in, TensorMap* tensors) {
  AFT_ASSIGN_OR_RETURN((*tensors)[to + ".weight"], source.Take(from + ".weight", {out, in}));
  AFT_ASSIGN_OR_RETURN((*tensors)[to + ".bias"], source.Take(from + ".bias", {out}));
  return absl::OkStatus();
}

absl::Status CopyNorm(Source& source, const std::string& from, const std::string& to, int64_t d,
                      TensorMap* tensors) {
  AFT_ASSIGN_OR_RETURN((*tensors)[to + ".weight"], source.Take(from + ".weight", {d}));
  AFT_ASSIGN_OR_RETURN((*tensors)[to + ".bias"], source.Take(from + ".bias", {d}));
  return absl::OkStatus();
}

absl::Status Source::Finish() const {
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : tensors_) {
    if (taken_.count(name) == 0) unknown.push_back(absl::StrCat("'", ShownTensorName(name), "'"));
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      unknown.size() == 1 ? "tensor " : "tensors ", absl::StrJoin(unknown, ", "),
      unknown.size() == 1 ? ": has" : ": have", " no place in the network that is imported"));
}

}  // namespace aft
