#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tests/support/cuda_on_cpu/include/cuda_runtime_api.h"
#include "tests/support/cuda_on_cpu/threads.h"

// Replaces CUDA's header of the same name when a kernel's source is compiled for the CPU. It has
// the part of the language and of the intrinsics that model/kernels/cuda uses.

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// There is no __shared__: shared memory comes from SharedLayout (model/kernels/cuda/launch.cuh),
// whose bounds are checked.

// ---- Vectors, with CUDA's alignment (checked by -fsanitize=alignment)
#define AFT_VECTORS(T, name, a2, a4)                         \
  struct alignas(a2) name##2 {                               \
    T x, y;                                                  \
  };                                                         \
  struct alignas(a4) name##4 {                               \
    T x, y, z, w;                                            \
  };                                                         \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
AFT_VECTORS(float, float, 8, 16)
AFT_VECTORS(unsigned, uint, 8, 16)
AFT_VECTORS(unsigned short, ushort, 4, 8)
#undef AFT_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};

namespace cuda_on_cpu {
struct Index {
  unsigned x = 0, y = 0, z = 0;
};
extern Index current_thread;
extern Index current_block;
extern dim3 current_block_size;
extern dim3 current_grid_size;
}  // namespace cuda_on_cpu
extern const cuda_on_cpu::Index& threadIdx;
extern const cuda_on_cpu::Index& blockIdx;
extern const dim3& blockDim;
extern const dim3& gridDim;

// ---- A kernel's limit of dynamic shared memory
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaFuncAttributes {
  int maxDynamicSharedSizeBytes;
};
namespace cuda_on_cpu {
int& SharedLimitOf(const void* kernel);  // 48 KiB at first
}  // namespace cuda_on_cpu
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute /*limit*/, int bytes) {
  if (static_cast<size_t>(bytes) > cuda_on_cpu::SharedLimit()) return cudaErrorInvalidValue;
  cuda_on_cpu::SharedLimitOf(reinterpret_cast<const void*>(kernel)) = bytes;
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* kernel) {
  *attributes = {cuda_on_cpu::SharedLimitOf(reinterpret_cast<const void*>(kernel))};
  return cudaSuccess;
}

// ---- Barriers
inline void __syncthreads(cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::SyncBlock(site);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU,
                       cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::SyncWarp(mask, site);
}

// ---- Warp operations; all 32 lanes must take part (threads.h)
template <typename T>
T __shfl_sync(unsigned mask, T value, int from,
              cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::FromWarp<T>(mask, value, site)[static_cast<unsigned>(from) % 32];
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits,
                  cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned from = cuda_on_cpu::Lane() ^ static_cast<unsigned>(bits);
  return cuda_on_cpu::FromWarp<T>(mask, value, site)[from];
}
// A lane that would read beyond the warp gets its own value, as on a GPU.
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by,
                 cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::Lane();
  return cuda_on_cpu::FromWarp<T>(mask, value, site)[lane < by ? lane : lane - by];
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const cuda_on_cpu::FromWarp<int> all(mask, predicate, site);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (all[lane] != 0) bits |= 1U << lane;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int predicate,
                      cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return __ballot_sync(mask, predicate, site) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return __ballot_sync(mask, predicate, site) == mask ? 1 : 0;
}

// ---- Atomics: one thread runs at a time
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  const cuda_on_cpu::AtomicAccess atomic;
  const T old = *at;
  *at = old + value;
  return old;
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  const cuda_on_cpu::AtomicAccess atomic;
  const T old = *at;
  *at = std::max(old, value);
  return old;
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const cuda_on_cpu::AtomicAccess atomic;
  const T old = *at;
  if (old == expected) *at = value;
  return old;
}

// ---- Loads and stores with a hint to the caches
template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
void __stcg(T* at, std::type_identity_t<T> value) {
  *at = value;
}

// ---- Arithmetic; fmaxf, expf and similar functions come from <cmath>
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline void sincospi(double x, double* sine, double* cosine) {
  const double angle = std::remainder(x, 2.0) * 3.14159265358979324;
  *sine = std::sin(angle);
  *cosine = std::cos(angle);
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
using std::max;
using std::min;
