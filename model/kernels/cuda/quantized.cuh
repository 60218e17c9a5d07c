#pragma once

#include <cmath>

#include "model/kernels/cuda/channels.cuh"
#include "model/kernels/linear/packed_weight.h"  // kInt8Most

// Rows of integers (types.h), with the bits that the CPU gives them.
namespace aft::kernels::cuda {

// |x| as an integer that has the order of the numbers. Infinity and NaN are above all others.
__device__ inline unsigned Magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }

template <int N>
__device__ inline unsigned LargestMagnitude(const Channels<N>& x) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) largest = max(largest, Magnitude(x[i]));
  return largest;
}

// How a row with this largest magnitude is quantized. A row with NaN or infinity gets the scale
// NaN. Its integers are 0, as are those of a row whose inverse would overflow.
struct RowScale {
  __device__ explicit RowScale(unsigned magnitude) {
    const float largest = __uint_as_float(magnitude);
    const bool finite = magnitude < 0x7F800000U;
    scale = finite ? largest / kInt8Most : __uint_as_float(0x7FC00000U);
    inverse = finite && largest > 1e-36F ? kInt8Most / largest : 0.0F;
  }

  // Stores the integers of neighbouring columns.
  __device__ void StoreIntegers(const Channels<4>& x, int8_t* to) const {
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int integer = inverse > 0.0F ? static_cast<int>(rintf(x[i] * inverse)) : 0;
      word |= (static_cast<unsigned>(integer) & 0xFFU) << 8 * i;
    }
    *reinterpret_cast<unsigned*>(to) = word;
  }
  __device__ void StoreScale(int8_t* row) const {
    *reinterpret_cast<float*>(row - kScaleBytes) = scale;
  }

  float scale;
  float inverse;
};

__device__ inline float ScaleOf(const int8_t* row) {
  return *reinterpret_cast<const float*>(row - kScaleBytes);
}

}  // namespace aft::kernels::cuda
