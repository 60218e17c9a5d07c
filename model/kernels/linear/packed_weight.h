#pragma once

#include <cstdint>

#include "model/config/formats.h"

namespace aft::kernels {

// A linear layer's weight [out, in] and bias [out], rearranged once when the model is loaded. Only
// this file and packed_weight.cc know how a weight is stored, apart from the products that read it.
// The memory is borrowed. The layout does not depend on the instruction set. It consists of panels
// of kPanel outputs, the last panel padded with zeros. A panel is
//
//   kFp32  [in, kPanel]
//   kBf16  [in / 2, kPanel, 2], rounded to nearest even; an odd last input is paired with a zero
//   kInt8  [in / 4, kPanel, 4], padded with zeros; QuantizeWeightRow makes the output's weights
//
// The panels are followed by vectors that are padded in the same way: the bias in fp32, and for
// kInt8 the scales (fp32) and each output's sum of integers (int32).
struct PackedWeight {
  Number format = Number::kFp32;
  const void* bytes = nullptr;  // 64-byte aligned
  int64_t in = 0;
  int64_t out = 0;
};
inline constexpr int64_t kPanel = 32;

inline int64_t LinearPanels(int64_t out) { return (out + kPanel - 1) / kPanel; }
constexpr int64_t PanelBytes(int64_t in, Number format) {
  const int64_t neighbours = SpecOf(format).neighbours;  // a power of two
  return ((in + neighbours - 1) & -neighbours) * kPanel * NumberBytes(format);
}
// The bytes that a packed weight occupies. REQUIRES: one of the above formats.
int64_t PackedWeightBytes(int64_t in, int64_t out, Number format);

// Packs weight [out, in] and bias [out] (null: zeros) into PackedWeightBytes() at `packed`, which
// is 64-byte aligned. A weight that is not finite stays so in fp32 and bf16; in int8 it makes its
// output NaN. REQUIRES: `in` is at most FormatSpec::most_inputs.
PackedWeight PackLinear(const float* weight, const float* bias, int64_t in, int64_t out,
                        Number format, void* packed);

// Represents w [in] as scale * integers of -127 .. 127. Returns the scale, which is NaN where w is
// not finite. The scale is largest |w| / 127, rounded up to 16 significant bits. Therefore its
// products with the integers are exact, and quantizing them again changes nothing, if largest |w|
// is above 1e-37; below that fp32 has too few digits.
float QuantizeWeightRow(const float* w, int64_t in, int8_t* integers);

// Sets w [in] to the weights of output n as they are stored.
void UnpackOutput(const PackedWeight& linear, int64_t n, float* w);

inline constexpr float kInt8Most = 127.0F;

// The vectors after the panels.
inline const float* PackedBias(const PackedWeight& linear) {
  return reinterpret_cast<const float*>(static_cast<const unsigned char*>(linear.bytes) +
                                        LinearPanels(linear.out) *
                                            PanelBytes(linear.in, linear.format));
}
struct Int8Vectors {
  explicit Int8Vectors(const PackedWeight& linear)
      : bias(PackedBias(linear)),
        scales(bias + LinearPanels(linear.out) * kPanel),
        sums(reinterpret_cast<const int32_t*>(scales + LinearPanels(linear.out) * kPanel)) {}

  const float* bias;
  const float* scales;
  const int32_t* sums;
};

}  // namespace aft::kernels
