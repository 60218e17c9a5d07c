#pragma once

#include <stdexcept>

#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"

// Small kernels whose template parameters and arguments can leave out or break one thing. They are
// for the CPU only: on a GPU some of them might never return.
namespace aft::kernels::cuda {

template <typename T>
__device__ inline T* Carve(int64_t count) {
  return SharedLayout(DynamicShared()).Take<T>(count);
}
inline size_t SharedFloats(int64_t count) {
  SharedLayout layout;
  layout.Take<float>(count);
  return layout.bytes();
}

// y = x backwards, in one block.
template <bool kBarrier>
__global__ void Reverse(const float* x, float* y) {
  float* const shared = Carve<float>(blockDim.x);
  shared[threadIdx.x] = x[threadIdx.x];
  if (kBarrier) __syncthreads();
  y[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// y[i] = 1 x[i] + 2 x[i + 1] + ..., with indexes modulo the block. All rounds use the same memory.
template <bool kBarrierAfterReading>
__global__ void Rounds(const float* x, float* y, int rounds) {
  float* const shared = Carve<float>(blockDim.x);
  float sum = 0.0F;
  for (int i = 0; i < rounds; ++i) {
    shared[threadIdx.x] = x[threadIdx.x] * static_cast<float>(i + 1);
    __syncthreads();
    sum += shared[(threadIdx.x + static_cast<unsigned>(i)) % blockDim.x];
    if (kBarrierAfterReading) __syncthreads();
  }
  y[threadIdx.x] = sum;
}

// Does the same as Reverse in one warp.
template <bool kBarrier>
__global__ void ReverseWarp(const float* x, float* y) {
  float* const shared = Carve<float>(32);
  shared[threadIdx.x] = x[threadIdx.x];
  if (kBarrier) __syncwarp();
  y[threadIdx.x] = shared[31 - threadIdx.x];
}

// Does the same as Reverse with four floats for each thread, which asynchronous copies load.
template <bool kCommit, bool kWait, bool kBarrier>
__global__ void ReverseAsync(const float* x, float* y) {
  float* const shared = Carve<float>(4 * blockDim.x);
  CopyAsync16(shared + 4 * threadIdx.x, x + 4 * threadIdx.x);
  if (kCommit) CommitCopies();
  if (kWait) WaitForCopies<0>();
  if (kBarrier) __syncthreads();
  for (unsigned i = 4 * threadIdx.x; i < 4 * threadIdx.x + 4; ++i) {
    y[i] = shared[4 * blockDim.x - 1 - i];
  }
}

// Writes to the source of an asynchronous copy before the copy is waited for.
__global__ inline void ChangeWhileCopying(float* x, float* y) {
  float* const shared = Carve<float>(4 * blockDim.x);
  CopyAsync16(shared + 4 * threadIdx.x, x + 4 * threadIdx.x);
  CommitCopies();
  x[4 * threadIdx.x] = -1.0F;
  WaitForCopies<0>();
  y[threadIdx.x] = shared[4 * threadIdx.x];
}

// The next kernels access x at an offset from the thread's index.
__global__ inline void Read(const float* x, int offset, float* y) {
  y[threadIdx.x] = x[static_cast<int>(threadIdx.x) + offset];
}
__global__ inline void Write(float* x, int offset) {
  x[static_cast<int>(threadIdx.x) + offset] = 1.0F;
}
__global__ inline void ReadAsync(const float* x, int offset) {
  CopyAsync16(Carve<float>(4 * blockDim.x) + 4 * threadIdx.x, x + 4 * threadIdx.x + offset);
}
__global__ inline void ReadFour(const float* x, float* y) {
  const float4 four = *reinterpret_cast<const float4*>(x);
  y[0] = four.x + four.w;
}

// Two arrays of 32 floats in shared memory. WriteShared writes element `at` of one of them.
struct TwoArrays {
  __host__ __device__ explicit TwoArrays(SharedLayout& shared)
      : first(shared.Take<float>(32)), second(shared.Take<float>(32)) {}
  float* first;
  float* second;
};
__global__ inline void WriteShared(bool second, int at) {
  SharedLayout layout(DynamicShared());
  const TwoArrays arrays(layout);
  (second ? arrays.second : arrays.first)[at] = 1.0F;
}

// Sums x in shared memory that was never set.
__global__ inline void Uninitialised(const float* x, float* y) {
  float* const shared = Carve<float>(32);
  shared[threadIdx.x] += x[threadIdx.x];
  y[threadIdx.x] = shared[threadIdx.x];
}

// Counts its threads.
template <bool kAtomic>
__global__ void Count(int* count) {
  if (kAtomic) {
    atomicAdd(count, 1);
  } else {
    *count += 1;
  }
}

// Threads below `here` wait at a barrier. In TwoBarriers the others wait at another barrier, in
// EndsEarly they have ended, in BarrierAndShuffle they wait for their warp.
__global__ inline void TwoBarriers(unsigned here) {
  if (threadIdx.x < here) {
    __syncthreads();  // first
  } else {
    __syncthreads();  // second
  }
}
__global__ inline void EndsEarly(unsigned here) {
  if (threadIdx.x >= here) return;
  __syncthreads();
}
__global__ inline void BarrierAndShuffle(unsigned here, float* y) {
  if (threadIdx.x < here) {
    __syncthreads();
  } else {
    y[blockIdx.x * blockDim.x + threadIdx.x] = __shfl_sync(0xFFFFFFFF, 1.0F, 0);
  }
}
// Threads with an index of `lanes` or more do not take part.
__global__ inline void Shuffle(unsigned mask, unsigned lanes, float* y) {
  if (threadIdx.x >= lanes) return;
  const float got = __shfl_xor_sync(mask, static_cast<float>(threadIdx.x), 1);
  y[blockIdx.x * blockDim.x + threadIdx.x] = got;
}

// y[t] = mean of x[0..t], by one warp for each t. A kMaskOff other than 0 is an error.
template <int kMaskOff>
__global__ void CausalMean(const float* x, int tokens, float* y) {
  const int t = static_cast<int>(blockIdx.x);
  float sum = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < tokens; i += 32) {
    if (i <= t + kMaskOff) sum += x[i];
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
  if (threadIdx.x == 0) y[t] = sum / static_cast<float>(t + 1);
}

__global__ inline void Throws() {
  if (threadIdx.x == 7) throw std::runtime_error("no such thing on a GPU");
  __syncthreads();
}
__global__ inline void Nothing() {}
__global__ inline void Launches() { Launch(&Nothing, dim3(1), dim3(32), 0, nullptr); }
inline int Deeper(volatile const int* depth) {
  volatile int more[2] = {depth[0] + 1, 0};
  return more[0] > (1 << 24) ? 0 : Deeper(more) + more[1];
}
__global__ inline void Recurses() {
  const int start = 0;
  Deeper(&start);
}

}  // namespace aft::kernels::cuda
