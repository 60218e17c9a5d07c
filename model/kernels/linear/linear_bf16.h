#pragma once

#include <cstdint>

#include "model/kernels/linear/linear_rows.h"
#include "model/kernels/linear/packed_weight.h"

// Linear (linear.h) for bf16 weights and rows that are rounded to bf16 too, with AVX512-BF16.
// REQUIRES: HasBf16Dots() (instruction_set.h).
namespace aft::kernels {

// These do the work of Linear, QuantizedBytes and QuantizeRows.
void LinearBf16Dots(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                    Epilogue epilogue, int64_t begin, int64_t end);
int64_t Bf16RowBytes(int64_t in);
void QuantizeBf16DotsRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                          void* quantized);

}  // namespace aft::kernels
