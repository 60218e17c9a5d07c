#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// Kernels that each run one function of model/kernels/cuda/ptx.cuh, or one of those of aft/math.cuh
// that promise exact bits; and one to test launch.cuh.
namespace aft::kernels::cuda {

// Functions from bits to bits. A 16-bit number is in the lower half of its word.
enum class PtxFunction {
  kToBf16,
  kToFp16,
  kToTf32,
  kFromBf16,
  kFromFp16,
  kPackBf16,  // packs x and -x, with -x in the upper half
  kExp2,
  kExp,
  kReciprocal,
};
int RunPtx(PtxFunction function, const uint32_t* x, int64_t count, uint32_t* y, Stream stream);

// One warp computes c [16, 8] += a [16, k] b [k, 8], row-major. k is 8 for kTf32, 32 for kIntegers
// (which are -128 to 127), otherwise 16.
enum class PtxProduct {
  kTf32,
  kBf16,
  kBf16Matrices,  // operands by LoadMatrices
  kIntegers,
};
int RunPtxProduct(PtxProduct product, const float* a, const float* b, float* c, Stream stream);

// A row of sums [count, 3] is (num, den, max). Inserts tokens [count, 2], each (k, v), into the
// sums. If `tokens` is null, combines the sums with `more` [count, 3].
int RunPrefix(float* sums, const float* tokens, const float* more, int64_t count, Stream stream);

// Runs a kernel that does nothing with `shared_bytes` bytes of dynamic shared memory.
int RunNothing(int64_t shared_bytes, Stream stream);
// The most bytes with which that kernel can now be launched; negative on an error.
int64_t SharedLimitOfNothing();

}  // namespace aft::kernels::cuda
