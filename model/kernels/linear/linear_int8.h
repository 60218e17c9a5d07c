#pragma once

#include <cstdint>

#include "model/kernels/linear/linear_rows.h"
#include "model/kernels/linear/packed_weight.h"

// Linear (linear.h) for int8 weights.
namespace aft::kernels {

// A quantized row: its scale, and from this byte on its integers, zero-padded to whole vectors.
inline constexpr int64_t kQuantizedHead = 16;

// These do the work of Linear, QuantizedBytes and QuantizeRows.
void LinearInt8(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                Epilogue epilogue, int64_t begin, int64_t end);
int64_t Int8RowBytes(int64_t in);
void QuantizeInt8Rows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                      void* quantized);

// These use AVX512-VNNI or ARM's dot products. REQUIRES: HasInt8Dots() (instruction_set.h).
void LinearInt8Dots(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                    Epilogue epilogue, int64_t begin, int64_t end);
void QuantizeInt8DotsRows(const LinearRows& rows, int64_t in, int64_t begin, int64_t end,
                          void* quantized);

}  // namespace aft::kernels
