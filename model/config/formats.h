#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Enums of the config that kernels read too. Plain C++17: nvcc compiles it.
namespace aft {

// How a number is stored. This applies to weights, to the operands of matrix products, and to the
// keys and values that a sequence keeps one by one (its ring). Sums, norms, softmaxes and states
// are always fp32. kInt8 is for weights only, with a scale for the weights of each output.
enum class Number { kFp32, kBf16, kFp16, kInt8 };

// The description of a format. Everything that only needs to know a format's properties reads them
// here: names in the config and on command lines, dtypes of checkpoints, devices, conversions,
// sizes.
struct FormatSpec {
  Number format;
  const char* name;
  const char* dtype;  // of a checkpoint's tensors, as safetensors call it
  int64_t bytes;      // of a number
  // Whether a model's weights can have this format (weight_format) on a CPU and on a GPU.
  bool on_cpu;
  bool on_gpu;
  bool is_converted_to;  // `aft-convert quantize --format`
  // For weights that are packed for the CPU (kernels/linear/packed_weight.h), where they can be:
  // how many inputs of an output lie side by side, about how many multiplications a core does in a
  // nanosecond, and the most inputs that an output may have (0: any number).
  int64_t neighbours;
  int64_t products;
  int64_t most_inputs;
};
// In the order of Number. int8: with more inputs a sum of products might not fit into 32 bits.
inline constexpr FormatSpec kFormats[] = {
    {Number::kFp32, "fp32", "F32", 4, true, true, false, 1, 128, 0},
    {Number::kBf16, "bf16", "BF16", 2, true, true, true, 2, 128, 0},
    {Number::kFp16, "fp16", "F16", 2, false, true, false, 1, 128, 0},
    {Number::kInt8, "int8", "I8", 1, true, true, true, 4, 512, int64_t{1} << 17},
};
inline constexpr const FormatSpec& SpecOf(Number format) {
  return kFormats[static_cast<int>(format)];
}

constexpr bool NeighboursArePowersOfTwo() {
  for (const FormatSpec& spec : kFormats) {
    if ((spec.neighbours & (spec.neighbours - 1)) != 0) return false;
  }
  return true;
}
static_assert(NeighboursArePowersOfTwo());
static_assert(int64_t{127} * 127 * SpecOf(Number::kInt8).most_inputs <= INT32_MAX);

// Whether products with such weights read rows of integers too (kernels/linear/linear_rows.h).
inline constexpr bool IsQuantized(Number type) { return type == Number::kInt8; }

inline constexpr int64_t NumberBytes(Number type) { return SpecOf(type).bytes; }
inline constexpr const char* NumberName(Number type) { return SpecOf(type).name; }
inline std::optional<Number> NumberNamed(const std::string& name) {
  for (const FormatSpec& spec : kFormats) {
    if (name == spec.name) return spec.format;
  }
  return std::nullopt;
}

// The values that `weight_format` can have on a device.
inline std::vector<std::string> WeightFormatNames(bool on_gpu) {
  std::vector<std::string> names = {"stored"};
  for (const FormatSpec& spec : kFormats) {
    if (on_gpu ? spec.on_gpu : spec.on_cpu) names.emplace_back(spec.name);
  }
  return names;
}

// The activation of the feed-forward. kGelu: x Phi(x), exact; kGeluTanh: its approximation by tanh;
// kSquaredRelu: max(x, 0)^2.
enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSquaredRelu };

}  // namespace aft
