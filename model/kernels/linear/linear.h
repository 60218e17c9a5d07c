#pragma once

#include <cstdint>

#include "model/kernels/linear/linear_rows.h"
#include "model/kernels/linear/packed_weight.h"

namespace aft::kernels {

// The bytes of one quantized row, which products with weights of `format` read in place of x. 0
// means that they read x itself. The content of a quantized row depends on the instruction set.
int64_t QuantizedBytes(Number format, int64_t in);
// Quantizes rows [begin, end) into their places in `quantized` [rows, QuantizedBytes()], 64-byte
// aligned. REQUIRES: QuantizedBytes() > 0.
void QuantizeRows(Number format, const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                  void* quantized);

// Computes the columns of panels [begin, end) of y [rows, out]; rows are y_stride floats apart. y
// must not overlap x.
//
// kFp32, kBf16: every output is one chain of fused multiply-adds over in = 0, 1, 2, ... that starts
// from the bias. With AVX512-BF16, a kBf16 output is one chain of that instruction over pairs of
// in, with x rounded to bf16 and denormals as zeros. With AMX, if `in` is a multiple of 32, it is a
// chain from 0 over sums of 32 products, and the bias is added to it.
//
// kInt8: the sum of products of integers is exact. It is multiplied by (scale of x * scale of w)
// and the bias is added, each rounded. Before the activation it has the same bits on every
// instruction set.
//
// So a row's result has the same bits for every number of rows and every place among them.
// Different panels may run at the same time on different threads.
void Linear(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
            Epilogue epilogue, int64_t begin, int64_t end);

}  // namespace aft::kernels
