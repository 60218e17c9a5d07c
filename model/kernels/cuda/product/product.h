#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// Matrix products of few rows, as a decode step of few streams has them. Such a product only waits
// for its weights, so each block reads its share of them at once, and the sum of the bias and the
// activation cost no launch of their own. Products of more rows belong to a library.
namespace aft::kernels::cuda {

// The most rows of MultiplyFewRows: the height of a tensor core's tile.
inline constexpr int64_t kFewRows = 16;

struct ProductModel {
  int64_t in = 0;
  int64_t out = 0;
  const void* weight = nullptr;  // [out, in] bf16, dense
  const void* bias = nullptr;    // [out] bf16, or null
  Activation activation = Activation::kNone;
};

// Whether MultiplyFewRows can read this model and these rows: they must be bf16, and everything
// must be aligned to 16 bytes, which includes `in` and the distance between the rows.
bool FitsFewRows(const ProductModel& model, In x);

// y = activation(x weight^T + bias), summed in fp32.
//   x [count, in] bf16, count <= kFewRows; y [count, out] fp32 or bf16
// A row's bits depend on that row and on the weights only. REQUIRES: FitsFewRows; otherwise, and
// for other types of y, the result is cudaErrorInvalidValue.
int MultiplyFewRows(const ProductModel& model, In x, int64_t count, Out y, Stream stream);

}  // namespace aft::kernels::cuda
