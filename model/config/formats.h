#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Enums of the config that kernels read too. Plain C++17: nvcc compiles it.
namespace aft {

// How a number is stored: weights, the operands of matrix products, the keys and values that a
// sequence keeps one by one (its ring). Sums, norms, softmaxes and states are fp32 always. kInt8:
// weights alone, each output's by a scale of its own.
enum class Number { kFp32, kBf16, kFp16, kInt8 };
inline constexpr int64_t NumberBytes(Number type) {
  return type == Number::kFp32 ? 4 : type == Number::kInt8 ? 1 : 2;
}
inline constexpr const char* NumberName(Number type) {
  return type == Number::kFp32   ? "fp32"
         : type == Number::kBf16 ? "bf16"
         : type == Number::kFp16 ? "fp16"
                                 : "int8";
}
inline std::optional<Number> NumberNamed(const std::string& name) {
  for (const Number type : {Number::kFp32, Number::kBf16, Number::kFp16, Number::kInt8}) {
    if (name == NumberName(type)) return type;
  }
  return std::nullopt;
}

// Of the feed-forward part. kGelu: x Phi(x), exact; kGeluTanh: the same in its tanh form.
enum class Activation { kNone, kRelu, kGelu, kGeluTanh };

}  // namespace aft
