#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// The functions of model/kernels/cuda/ptx.cuh by themselves, as kernels, and those of aft/math.cuh
// that promise bits.
namespace aft::kernels::cuda {

// Bits in, bits out; of 16-bit numbers the lower half.
enum class PtxFunction {
  kToBf16,
  kToFp16,
  kToTf32,
  kFromBf16,
  kFromFp16,
  kPackBf16,  // of x and -x: -x in the upper half
  kExp2,
  kExp,
  kReciprocal,
};
int RunPtx(PtxFunction function, const uint32_t* x, int64_t count, uint32_t* y, Stream stream);

// c [16, 8] += a [16, k] b [k, 8], row-major, by one warp: k is 8 for kTf32, 16 for the others.
enum class PtxProduct {
  kTf32,
  kBf16,
  kBf16Matrices,  // operands by LoadMatrices and LoadMatricesTransposed
};
int RunPtxProduct(PtxProduct product, const float* a, const float* b, float* c, Stream stream);

// sums [count, 3]: num, den, max. Inserts tokens [count, 2] (k, v), or combines with `more`
// [count, 3] where there are no tokens.
int RunPrefix(float* sums, const float* tokens, const float* more, int64_t count, Stream stream);

}  // namespace aft::kernels::cuda
