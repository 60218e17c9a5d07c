#pragma once

#include <cstdint>

#include "model/kernels/linear.h"

// The int8 part of linear.h.
namespace aft::kernels {

inline constexpr float kInt8Most = 127.0F;

// A quantized row: its scale, then from here on its integers, padded with zeros to whole vectors.
inline constexpr int64_t kQuantizedHead = 16;

// What stands behind a packed weight's integers.
struct Int8Vectors {
  explicit Int8Vectors(const PackedWeight& linear)
      : bias(reinterpret_cast<const float*>(static_cast<const int8_t*>(linear.bytes) +
                                            LinearPanels(linear.out) * PanelBytes(linear.in))),
        scales(bias + LinearPanels(linear.out) * kPanel),
        sums(reinterpret_cast<const int32_t*>(scales + LinearPanels(linear.out) * kPanel)) {}

  static int64_t PanelBytes(int64_t in) { return (in + 3) / 4 * 4 * kPanel; }

  const float* bias;
  const float* scales;
  const int32_t* sums;
};

// As Linear.
void LinearInt8(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                Epilogue epilogue, int64_t begin, int64_t end);

// Whether instructions that add four products at once (AVX512-VNNI) are used beside the instruction
// set's own. What is quantized with them is read with them.
bool HasInt8Dots();
void UseInt8Dots(bool use);  // for tests; has no effect where the CPU lacks them

}  // namespace aft::kernels
