#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// Matrix products of few rows, as a decode step of few streams has them. Such a product only waits
// for its weights, so each block reads its share of them at once, and the sum of the bias and the
// activation cost no launch of their own. Products of more rows belong to a library, except those
// of int8, whose sums a library would store before they are scaled.
namespace aft::kernels::cuda {

// The most rows of MultiplyFewRows: the height of a tensor core's tile.
inline constexpr int64_t kFewRows = 16;

struct ProductModel {
  int64_t in = 0;
  int64_t out = 0;
  const void* weight = nullptr;  // [out, in] bf16 or int8, dense
  const void* bias = nullptr;    // [out] bf16, with int8 fp32; or null
  Activation activation = Activation::kNone;
  const float* scale = nullptr;  // [out], only with int8
};

// Whether MultiplyFewRows can read this model and these rows: both must be bf16 or both int8, and
// everything must be aligned to 16 bytes, which includes `in` and the distance between the rows.
bool FitsFewRows(const ProductModel& model, In x);

// y = activation(x weight^T + bias), summed in fp32; for int8 summed exactly, then multiplied by
// the scales as on the CPU (model/kernels/linear/linear.h), with its bits before the activation.
//   x [count, in] bf16 or int8, count <= kFewRows; y [count, out] fp32, with bf16 also bf16
// A row's bits depend on that row and on the weights only. REQUIRES: FitsFewRows; otherwise, and
// for other types of y, the result is cudaErrorInvalidValue.
int MultiplyFewRows(const ProductModel& model, In x, int64_t count, Out y, Stream stream);

// Does this for any number of int8 rows, with the same bits.
int MultiplyInt8(const ProductModel& model, In x, int64_t count, Out y, Stream stream);

}  // namespace aft::kernels::cuda
