#include "model/checkpoint/stored_weights.h"

#include <string>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/config/tensors.h"
#include "model/kernels/packed_weight.h"

namespace aft {
namespace {

std::string ScaleName(const std::string& name) { return name + ".scale"; }

// Integers and scales of a matrix.
void Quantize(const std::string& name, const at::Tensor& matrix, TensorMap* stored) {
  const int64_t out = matrix.size(0);
  const int64_t in = matrix.size(1);
  const at::Tensor integers = at::empty({out, in}, at::kChar);
  const at::Tensor scales = at::empty({out}, at::kFloat);
  for (int64_t n = 0; n < out; ++n) {
    scales.data_ptr<float>()[n] = kernels::QuantizeOutput(matrix.const_data_ptr<float>() + n * in,
                                                          in, integers.data_ptr<int8_t>() + n * in);
  }
  (*stored)[name] = integers;
  (*stored)[ScaleName(name)] = scales;
}

}  // namespace

absl::Status ExpandWeights(TensorMap* tensors) {
  std::vector<std::string> scales;
  for (auto& [name, tensor] : *tensors) {
    if (tensor.scalar_type() == at::kBFloat16) tensor = tensor.to(at::kFloat);
    if (tensor.scalar_type() != at::kChar) continue;
    const auto scale = tensors->find(ScaleName(name));
    if (tensor.dim() != 2 || scale == tensors->end() || scale->second.scalar_type() != at::kFloat ||
        scale->second.dim() != 1 || scale->second.size(0) != tensor.size(0)) {
      return absl::DataLossError(absl::StrCat(
          "tensor '", ShownTensorName(name), "': is I8 without '", ShownTensorName(ScaleName(name)),
          "', F32, of as many numbers as it has rows"));
    }
    scales.push_back(scale->first);
    tensor = tensor.to(at::kFloat).mul_(scale->second.unsqueeze(1));
  }
  for (const std::string& name : scales) tensors->erase(name);
  return absl::OkStatus();
}

TensorMap StoredWeights(const NetworkConfig& config, const TensorMap& tensors, Number format) {
  TensorMap stored = tensors;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (spec.role != TensorRole::kMatrix) continue;
    at::Tensor& tensor = stored.at(spec.name);
    if (format == Number::kBf16) tensor = tensor.to(at::kBFloat16);
    if (format == Number::kInt8) Quantize(spec.name, tensors.at(spec.name), &stored);
  }
  return stored;
}

}  // namespace aft
