#pragma once

#include <cstdint>

#include "model/kernels/linear/linear_rows.h"
#include "model/kernels/linear/packed_weight.h"

// Linear (linear.h) for fp32 and bf16 weights, both with fp32 rows.
namespace aft::kernels {

void LinearFloats(const PackedWeight& linear, const LinearRows& rows, float* y, int64_t y_stride,
                  Epilogue epilogue, int64_t begin, int64_t end);

}  // namespace aft::kernels
