#pragma once

#include "model/kernels/cuda/launch.cuh"

// Sums and maxima over the threads of a warp or a block. The order of the sums depends on the
// block's size alone.
namespace aft::kernels::cuda {

template <typename T>
__device__ inline T WarpSum(T x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, lanes);
  return x;
}

// `warps`: a float of shared memory for each warp, which no other sum uses.
__device__ inline float BlockSum(float x, float* warps) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return WarpSum(lane < blockDim.x / 32 ? warps[lane] : 0.0F);
}

__device__ inline unsigned WarpMax(unsigned x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = max(x, __shfl_xor_sync(0xFFFFFFFFU, x, lanes));
  return x;
}

// `warps` is as for BlockSum.
__device__ inline unsigned BlockMax(unsigned x, unsigned* warps) {
  x = WarpMax(x);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return WarpMax(lane < blockDim.x / 32 ? warps[lane] : 0);
}

}  // namespace aft::kernels::cuda
