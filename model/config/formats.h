#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Enums of the config that kernels read too. Plain C++17: nvcc compiles it.
namespace aft {

// How a number is stored: weights, the operands of matrix products, the keys and values that a
// sequence keeps one by one (its ring). Sums, norms, softmaxes and states are fp32 always. kInt8:
// weights alone, each output's by a scale of its own.
enum class Number { kFp32, kBf16, kFp16, kInt8 };

// A format is described here, and everything that only asks what it is goes by it: names in the
// config and on command lines, dtypes of checkpoints, devices, conversions, sizes.
struct FormatSpec {
  Number format;
  const char* name;
  const char* dtype;  // of a checkpoint's tensors, as safetensors call it
  int64_t bytes;      // of a number
  // Where a model's weights can have it (weight_format).
  bool on_cpu;
  bool on_gpu;
  bool is_converted_to;  // `aft-convert quantize --format`
  // Of weights that are packed for the CPU (kernels/linear/packed_weight.h), where they can be: the
  // inputs of an output that lie side by side, the multiplications of a core in a nanosecond,
  // about, and the most inputs that an output may have; 0: any number.
  int64_t neighbours;
  int64_t products;
  int64_t most_inputs;
};
// In the order of Number. int8: beyond so many inputs a sum of products might not fit into 32 bits.
inline constexpr FormatSpec kFormats[] = {
    {Number::kFp32, "fp32", "F32", 4, true, true, false, 1, 128, 0},
    {Number::kBf16, "bf16", "BF16", 2, true, true, true, 2, 128, 0},
    {Number::kFp16, "fp16", "F16", 2, false, true, false, 1, 128, 0},
    {Number::kInt8, "int8", "I8", 1, true, false, true, 4, 512, int64_t{1} << 17},
};
inline constexpr const FormatSpec& SpecOf(Number format) {
  return kFormats[static_cast<int>(format)];
}

inline constexpr int64_t NumberBytes(Number type) { return SpecOf(type).bytes; }
inline constexpr const char* NumberName(Number type) { return SpecOf(type).name; }
inline std::optional<Number> NumberNamed(const std::string& name) {
  for (const FormatSpec& spec : kFormats) {
    if (name == spec.name) return spec.format;
  }
  return std::nullopt;
}

// What `weight_format` can be on a device.
inline std::vector<std::string> WeightFormatNames(bool on_gpu) {
  std::vector<std::string> names = {"stored"};
  for (const FormatSpec& spec : kFormats) {
    if (on_gpu ? spec.on_gpu : spec.on_cpu) names.emplace_back(spec.name);
  }
  return names;
}

// Of the feed-forward part. kGelu: x Phi(x), exact; kGeluTanh: the same in its tanh form.
enum class Activation { kNone, kRelu, kGelu, kGeluTanh };

}  // namespace aft
