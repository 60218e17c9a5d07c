#pragma once

#include <cstdint>

#include "model/config/formats.h"

namespace aft::kernels {

// A linear layer's weight [out, in] and bias [out], rearranged once at load; the only place that
// knows how a weight is stored. Borrowed memory. The layout does not depend on the instruction set:
// panels of kPanel outputs, the last one padded with zeros, each of them
//
//   kFp32  [in, kPanel]
//   kBf16  [in / 2, kPanel, 2], rounded to nearest even; an odd last input has a zero beside it
//   kInt8  [in / 4, kPanel, 4], padded with zeros; the output's weights by QuantizeOutput
//
// then, padded likewise, the bias in fp32, and for kInt8 the scales (fp32) and each output's sum of
// integers (int32).
struct PackedWeight {
  Number format = Number::kFp32;
  const void* bytes = nullptr;  // 64-byte aligned
  int64_t in = 0;
  int64_t out = 0;
};
inline constexpr int64_t kPanel = 32;

inline int64_t LinearPanels(int64_t out) { return (out + kPanel - 1) / kPanel; }
constexpr int64_t PanelBytes(int64_t in, Number format) {
  const int64_t neighbours = SpecOf(format).neighbours;
  return (in + neighbours - 1) / neighbours * neighbours * kPanel * NumberBytes(format);
}
// What a packed weight takes. REQUIRES: a format of the above.
int64_t PackedWeightBytes(int64_t in, int64_t out, Number format);

// Packs weight [out, in] and bias [out] (null: zeros) into PackedWeightBytes() at `packed`, which
// is 64-byte aligned. A weight that is not finite stays so in fp32 and bf16; in int8 it makes its
// output NaN. REQUIRES: no more inputs than FormatSpec::most_inputs.
PackedWeight PackLinear(const float* weight, const float* bias, int64_t in, int64_t out,
                        Number format, void* packed);

// w [in] as scale * integers of -127 .. 127; returns the scale, NaN where w is not finite. The
// scale is largest |w| / 127, rounded up to 16 bits: so products with integers are exact, and what
// was quantized once is quantized to the same again.
float QuantizeOutput(const float* w, int64_t in, int8_t* integers);

// w [in] = output n's weights as they are stored.
void UnpackOutput(const PackedWeight& linear, int64_t n, float* w);

inline constexpr float kInt8Most = 127.0F;

// What stands behind the panels.
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
