#pragma once

#include <cstdint>

#include "model/kernels/linear_rows.h"
#include "model/kernels/packed_weight.h"

// Linear (linear.h) of fp32 and bf16 weights.
namespace aft::kernels {

// As QuantizedBytes and QuantizeRows, for bf16: where products of bf16 want rows of it, else 0.
int64_t Bf16QuantizedBytes(int64_t in);
void QuantizeBf16Rows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                      void* quantized);

void LinearFloats(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                  Epilogue epilogue, int64_t begin, int64_t end);

}  // namespace aft::kernels
