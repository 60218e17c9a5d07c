#ifndef AFT_TESTS_SUPPORT_CUDA_ON_CPU_INCLUDE_CUDA_RUNTIME_H_
#define AFT_TESTS_SUPPORT_CUDA_ON_CPU_INCLUDE_CUDA_RUNTIME_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tests/support/cuda_on_cpu/include/cuda_runtime_api.h"
#include "tests/support/cuda_on_cpu/threads.h"

// Stands in for CUDA's header of the same name when a kernel's source is compiled for the CPU: the
// part of the language and of the intrinsics that model/kernels/cuda uses.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Not __shared__: shared memory comes from SharedLayout (model/kernels/cuda/launch.cuh), whose
// bounds are checked.

// ---- Vectors, with CUDA's alignment (checked by -fsanitize=alignment)
#define AFT_VECTORS(T, name, a2, a4)                                 \
  struct alignas(a2) name##2 {                                       \
    T x, y;                                                          \
  };                                                                 \
  struct name##3 {                                                   \
    T x, y, z;                                                       \
  };                                                                 \
  struct alignas(a4) name##4 {                                       \
    T x, y, z, w;                                                    \
  };                                                                 \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
AFT_VECTORS(float, float, 8, 16)
AFT_VECTORS(int, int, 8, 16)
AFT_VECTORS(unsigned, uint, 8, 16)
AFT_VECTORS(unsigned short, ushort, 4, 8)
#undef AFT_VECTORS
struct alignas(16) double2 {
  double x, y;
};
inline double2 make_double2(double x, double y) { return {x, y}; }

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
inline constexpr int warpSize = 32;

// ---- Barriers
inline void __syncthreads(cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::SyncBlock(site);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU,
                       cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::SyncWarp(mask, site);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- Warp operations: of all 32 lanes (threads.h)
//
// A lane that reads beyond its width gets its own value, as on a GPU.
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::Lane();
  const unsigned first = lane / static_cast<unsigned>(width) * static_cast<unsigned>(width);
  return cuda_on_cpu::FromWarp<T>(
      mask, value, site)[first + static_cast<unsigned>(from) % static_cast<unsigned>(width)];
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::Lane();
  const unsigned from = lane ^ static_cast<unsigned>(bits);
  const cuda_on_cpu::FromWarp<T> all(mask, value, site);
  return from / static_cast<unsigned>(width) > lane / static_cast<unsigned>(width) ? value
                                                                                   : all[from];
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::Lane();
  const cuda_on_cpu::FromWarp<T> all(mask, value, site);
  return lane % static_cast<unsigned>(width) < by ? value : all[lane - by];
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::Lane();
  const cuda_on_cpu::FromWarp<T> all(mask, value, site);
  return lane % static_cast<unsigned>(width) + by >= static_cast<unsigned>(width) ? value
                                                                                  : all[lane + by];
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const cuda_on_cpu::FromWarp<int> all(mask, predicate, site);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1U) != 0 && all[lane] != 0) bits |= 1U << lane;
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
T atomicExch(T* at, std::type_identity_t<T> value) {
  const cuda_on_cpu::AtomicAccess atomic;
  const T old = *at;
  *at = value;
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
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
void __stcs(T* at, std::type_identity_t<T> value) {
  *at = value;
}
template <typename T>
void __stcg(T* at, std::type_identity_t<T> value) {
  *at = value;
}

// ---- Arithmetic; fmaxf, expf and their like are <cmath>'s
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0F / x; }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __saturatef(float x) { return std::fmin(std::fmax(x, 0.0F), 1.0F); }
inline void sincospi(double x, double* sine, double* cosine) {
  const double angle = std::remainder(x, 2.0) * 3.14159265358979324;
  *sine = std::sin(angle);
  *cosine = std::cos(angle);
}
inline int __float2int_rn(float x) { return static_cast<int>(std::lrint(x)); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(Wide{a} * b >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;

#endif  // AFT_TESTS_SUPPORT_CUDA_ON_CPU_INCLUDE_CUDA_RUNTIME_H_
