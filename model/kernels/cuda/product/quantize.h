#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"
#include "model/kernels/cuda/wkv/blend.h"  // ColumnFunction

// Makes the rows of products with int8 weights (types.h).
namespace aft::kernels::cuda {

struct QuantizeModel {
  int64_t width = 0;
  // The parts of a row, each of which is quantized by itself: part p is columns begin[p] up to
  // begin[p + 1], which are multiples of 16. Each part has its scale before it, so its integers
  // begin at column begin[p] + p * kScaleBytes of y. Null: the whole row is one part.
  int64_t parts = 1;
  const int32_t* begin = nullptr;  // [parts + 1]
  // [width] or null: what is quantized is function(x), column by column.
  const ColumnFunction* function = nullptr;
};

// y = x [count, width] fp32, quantized as on the CPU: scale and integers have its bits.
int QuantizeRows(const QuantizeModel& model, In x, int64_t count, Out y, Stream stream);

}  // namespace aft::kernels::cuda
