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
//   kInt8  [in / 4, kPanel, 4], padded with zeros; w = scale * integer, the integers from -127 on,
//          scale = largest |w| of the output / 127
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
// kInt8: beyond it a sum of products might not fit into 32 bits.
inline constexpr int64_t kMostInt8Inputs = int64_t{1} << 17;

inline int64_t LinearPanels(int64_t out) { return (out + kPanel - 1) / kPanel; }
// What a packed weight takes. REQUIRES: a format of the above.
int64_t PackedWeightBytes(int64_t in, int64_t out, Number format);

// Packs weight [out, in] and bias [out] (null: zeros) into PackedWeightBytes() at `packed`, which is
// 64-byte aligned. A weight that is not finite stays so in fp32 and bf16; in int8 it makes its
// output NaN. REQUIRES: in <= kMostInt8Inputs for kInt8.
PackedWeight PackLinear(const float* weight, const float* bias, int64_t in, int64_t out,
                        Number format, void* packed);

// w [in] = output n's weights as they are stored.
void UnpackOutput(const PackedWeight& linear, int64_t n, float* w);

// What becomes of a product: y = activation(xW^T + b), or y = y + (xW^T + b), the residual.
struct Epilogue {
  constexpr Epilogue(Activation of = Activation::kNone) : activation(of) {}
  static constexpr Epilogue Add() {
    Epilogue epilogue;
    epilogue.add = true;
    return epilogue;
  }

  Activation activation;
  bool add = false;
};

// The rows of a product. For kInt8 they are quantized first: x = scale * integer with
// scale = largest |x| of the row / 127. A row that holds NaN or infinity becomes NaN.
struct LinearRows {
  const float* x = nullptr;  // [rows, in], rows `stride` floats apart
  int64_t stride = 0;
  int64_t rows = 0;
  const void* quantized = nullptr;  // of QuantizeRows; for kInt8 alone, which does not read x
};
// Of one row; how it looks like depends on the instruction set.
int64_t QuantizedBytes(int64_t in);
// Rows [begin, end) to their places in `quantized` [rows, QuantizedBytes(in)], 64-byte aligned.
void QuantizeRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end, void* quantized);

// Computes columns of panels [begin, end) of y [rows, out]; rows are y_stride floats apart. y must
// not overlap x.
//
// kFp32, kBf16: every output is one chain of fused multiply-adds over in = 0, 1, 2, ... that starts
// from the bias. kInt8: the sum of products of integers is exact, then it is multiplied by
// (scale of x * scale of w) and the bias added, each rounded: before the activation the same bits on
// every instruction set. So a row's result is the same bits for every number of rows and every
// place among them. Different panels may run at once on different threads.
void Linear(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
            Epilogue epilogue, int64_t begin, int64_t end);

}  // namespace aft::kernels
