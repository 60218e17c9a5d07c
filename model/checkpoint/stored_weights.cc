#include "model/checkpoint/stored_weights.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"
#include "model/kernels/linear/packed_weight.h"

namespace aft {
namespace {

std::string ScaleName(const std::string& name) { return name + ".scale"; }

// Stores the integers and the scales of a matrix.
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

absl::StatusOr<at::Tensor> Read(const SafetensorsReader& file, const std::string& name) {
  AFT_ASSIGN_OR_RETURN(at::Tensor tensor, file.Read(name));
  if (tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf) {
    return tensor.to(at::kFloat);
  }
  if (tensor.scalar_type() != at::kChar) return tensor;
  AFT_ASSIGN_OR_RETURN(const at::Tensor scale, file.Read(ScaleName(name)));
  return tensor.to(at::kFloat).mul_(scale.unsqueeze(1));
}

}  // namespace

absl::StatusOr<TensorSource> ExpandedTensors(std::shared_ptr<const SafetensorsReader> file) {
  const std::map<std::string, TensorEntry>& entries = file->header().tensors;
  std::set<std::string> scales;
  for (const auto& [name, entry] : entries) {
    if (entry.dtype != "I8") continue;
    const auto scale = entries.find(ScaleName(name));
    if (entry.shape.size() != 2 || scale == entries.end() || scale->second.dtype != "F32" ||
        scale->second.shape != std::vector<int64_t>{entry.shape[0]}) {
      return absl::DataLossError(absl::StrCat(
          "tensor '", ShownTensorName(name), "': is I8 without '", ShownTensorName(ScaleName(name)),
          "', F32, with one number for each of its rows"));
    }
    scales.insert(scale->first);
  }
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries) {
    if (scales.count(name) == 0) names.push_back(name);
  }
  return TensorSource(std::move(names), [file = std::move(file)](const std::string& name) {
    return Read(*file, name);
  });
}

Number StoredFormat(const NetworkConfig& config, const SafetensorsHeader& header) {
  std::optional<Number> format;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    const auto entry = header.tensors.find(spec.name);
    if (spec.role != TensorRole::kMatrix || entry == header.tensors.end()) continue;
    Number stored = Number::kFp32;
    for (const FormatSpec& one : kFormats) {
      if (entry->second.dtype == one.dtype) stored = one.format;
    }
    if (format.value_or(stored) != stored) return Number::kFp32;
    format = stored;
  }
  return format.value_or(Number::kFp32);
}

absl::StatusOr<TensorMap> StoredWeights(const NetworkConfig& config, const TensorSource& tensors,
                                        Number format) {
  TensorMap stored;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    AFT_ASSIGN_OR_RETURN(const at::Tensor tensor, tensors.Read(spec.name));
    if (spec.role == TensorRole::kMatrix && format == Number::kInt8) {
      Quantize(spec.name, tensor, &stored);
    } else {
      const bool bf16 = spec.role == TensorRole::kMatrix && format == Number::kBf16;
      stored[spec.name] = bf16 ? tensor.to(at::kBFloat16) : tensor;
    }
  }
  return stored;
}

}  // namespace aft
