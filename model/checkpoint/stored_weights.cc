#include "model/checkpoint/stored_weights.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/tensors.h"
#include "model/kernels/linear/packed_weight.h"

namespace aft {
namespace {

std::string ScaleName(const std::string& name) { return name + ".scale"; }

// Adds the integers and the scales of a matrix. Both are made at once, when the integers are made,
// which is first because of their names.
void AddQuantized(const std::string& name, const std::vector<int64_t>& shape,
                  std::function<absl::StatusOr<at::Tensor>()> read, DeferredTensors* stored) {
  const auto scales = std::make_shared<at::Tensor>();
  const auto quantize = [shape, read = std::move(read), scales]() -> absl::StatusOr<at::Tensor> {
    AFT_ASSIGN_OR_RETURN(const at::Tensor matrix, read());
    const int64_t in = shape[1];
    at::Tensor integers = at::empty(shape, at::kChar);
    *scales = at::empty({shape[0]}, at::kFloat);
    for (int64_t n = 0; n < shape[0]; ++n) {
      scales->data_ptr<float>()[n] = kernels::QuantizeWeightRow(
          matrix.const_data_ptr<float>() + n * in, in, integers.data_ptr<int8_t>() + n * in);
    }
    return integers;
  };
  (*stored)[name] = {at::kChar, shape, quantize};
  (*stored)[ScaleName(name)] = {at::kFloat, {shape[0]}, [scales] {
                                  AFT_CHECK(scales->defined());
                                  return *scales;
                                }};
}

// Reads a tensor in parts, so that it takes no memory in its own format.
absl::StatusOr<at::Tensor> Read(const SafetensorsReader& file, const std::string& name) {
  const TensorEntry& entry = file.header().tensors.at(name);
  if (entry.dtype != "BF16" && entry.dtype != "F16" && entry.dtype != "I8") return file.Read(name);
  constexpr int64_t kPart = int64_t{1} << 20;
  at::Tensor tensor = at::empty(entry.shape, at::kFloat);
  const at::Tensor numbers = tensor.view(-1);
  for (int64_t first = 0; first < numbers.size(0); first += kPart) {
    const int64_t count = std::min(kPart, numbers.size(0) - first);
    AFT_ASSIGN_OR_RETURN(const at::Tensor part, file.ReadPart(name, first, count));
    numbers.narrow(0, first, count).copy_(part);
  }
  if (entry.dtype != "I8") return tensor;
  AFT_ASSIGN_OR_RETURN(const at::Tensor scale, file.Read(ScaleName(name)));
  return tensor.mul_(scale.unsqueeze(1));
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
  const auto shape = [file](const std::string& name) {
    return file->header().tensors.at(name).shape;
  };
  const auto read = [file](const std::string& name) { return Read(*file, name); };
  return TensorSource(std::move(names), read, shape);
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

DeferredTensors StoredWeights(const NetworkConfig& config, TensorSource tensors, Number format) {
  const auto source = std::make_shared<const TensorSource>(std::move(tensors));
  DeferredTensors stored;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    const auto read = [source, name = spec.name] { return source->Read(name); };
    if (spec.role != TensorRole::kMatrix || format == Number::kFp32) {
      stored[spec.name] = {at::kFloat, spec.shape, read};
    } else if (format == Number::kInt8) {
      AddQuantized(spec.name, spec.shape, read, &stored);
    } else {
      stored[spec.name] = {at::kBFloat16, spec.shape, [read]() -> absl::StatusOr<at::Tensor> {
                             AFT_ASSIGN_OR_RETURN(const at::Tensor tensor, read());
                             return tensor.to(at::kBFloat16);
                           }};
    }
  }
  return stored;
}

}  // namespace aft
