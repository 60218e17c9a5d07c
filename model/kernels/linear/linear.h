#pragma once

#include <cstdint>

#include "model/kernels/linear/linear_rows.h"
#include "model/kernels/linear/packed_weight.h"

namespace aft::kernels {

// What products with weights of `format` take instead of x, bytes of one row; how it looks like
// depends on the instruction set. 0: x itself.
int64_t QuantizedBytes(Number format, int64_t in);
// Rows [begin, end) to their places in `quantized` [rows, QuantizedBytes()], 64-byte aligned.
// REQUIRES: QuantizedBytes() > 0.
void QuantizeRows(Number format, const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                  void* quantized);

// Computes columns of panels [begin, end) of y [rows, out]; rows are y_stride floats apart. y must
// not overlap x.
//
// kFp32, kBf16: every output is one chain of fused multiply-adds over in = 0, 1, 2, ... that starts
// from the bias; with AVX512-BF16, for kBf16, one of that instruction over pairs of in, with x
// rounded to bf16 and denormals as zeros. kInt8: the sum of products of integers is exact, then it
// is multiplied by (scale of x * scale of w) and the bias added, each rounded: before the
// activation the same bits on every instruction set. So a row's result is the same bits for every
// number of rows and every place among them. Different panels may run at once on different threads.
void Linear(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
            Epilogue epilogue, int64_t begin, int64_t end);

}  // namespace aft::kernels
