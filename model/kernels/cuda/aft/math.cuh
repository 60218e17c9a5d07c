#ifndef AFT_MODEL_KERNELS_CUDA_AFT_MATH_CUH_
#define AFT_MODEL_KERNELS_CUDA_AFT_MATH_CUH_

#include "model/kernels/aft.h"  // kEmptyMax
#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"

// Device code that the AFT kernels share. A NaN stays in its channel: maxima skip it (fmaxf), the
// sums do not.
namespace aft::kernels::cuda {

// ---- Neighbouring channels, a thread's share of a row: N = 1, 2, 4 or 8
template <int N>
struct Channels {
  __device__ float& operator[](int i) { return x[i]; }
  __device__ float operator[](int i) const { return x[i]; }

  float x[N];
};

// `from` and `to` are aligned to N numbers, or to 16 bytes when that is less.
template <int N>
__device__ inline Channels<N> Load(const float* from) {
  Channels<N> c;
  if constexpr (N == 1) {
    c[0] = *from;
  } else if constexpr (N == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    c[0] = two.x;
    c[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      c[i] = four.x;
      c[i + 1] = four.y;
      c[i + 2] = four.z;
      c[i + 3] = four.w;
    }
  }
  return c;
}
template <int N>
__device__ inline void Store(const Channels<N>& c, float* to) {
  if constexpr (N == 1) {
    *to = c[0];
  } else if constexpr (N == 2) {
    *reinterpret_cast<float2*>(to) = make_float2(c[0], c[1]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(c[i], c[i + 1], c[i + 2], c[i + 3]);
    }
  }
}

// T: Bf16 or Fp16.
template <int N, typename T>
__device__ inline Channels<N> Load(const T* from) {
  static_assert(sizeof(T) == 2);
  Channels<N> c;
  if constexpr (N == 1) {
    c[0] = ToFloat(*from);
  } else if constexpr (N == 2) {
    const ushort2 two = *reinterpret_cast<const ushort2*>(from);
    c[0] = ToFloat(T{two.x});
    c[1] = ToFloat(T{two.y});
  } else if constexpr (N == 4) {
    const ushort4 four = *reinterpret_cast<const ushort4*>(from);
    c[0] = ToFloat(T{four.x});
    c[1] = ToFloat(T{four.y});
    c[2] = ToFloat(T{four.z});
    c[3] = ToFloat(T{four.w});
  } else {
    const uint4 pairs = *reinterpret_cast<const uint4*>(from);
    const unsigned words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      c[2 * i] = ToFloat(T{static_cast<uint16_t>(words[i] & 0xFFFFU)});
      c[2 * i + 1] = ToFloat(T{static_cast<uint16_t>(words[i] >> 16)});
    }
  }
  return c;
}
template <int N>
__device__ inline void StoreBits(const uint16_t (&bits)[N], void* to) {
  if constexpr (N == 1) {
    *static_cast<uint16_t*>(to) = bits[0];
  } else if constexpr (N == 2) {
    *static_cast<ushort2*>(to) = make_ushort2(bits[0], bits[1]);
  } else if constexpr (N == 4) {
    *static_cast<ushort4*>(to) = make_ushort4(bits[0], bits[1], bits[2], bits[3]);
  } else {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = static_cast<unsigned>(bits[2 * i]) | static_cast<unsigned>(bits[2 * i + 1]) << 16;
    }
    *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}
// Rounds to nearest even.
template <int N, typename T>
__device__ inline void Store(const Channels<N>& c, T* to) {
  static_assert(sizeof(T) == 2);
  uint16_t bits[N];
#pragma unroll
  for (int i = 0; i < N; ++i) bits[i] = FromFloat<T>(c[i]).bits;
  StoreBits(bits, to);
}

// To global memory. nvcc splits some vector stores into scalar ones (a token that is copied into a
// ring, sums behind a barrier); these it does not.
template <int N>
__device__ inline void StoreGlobal(const Channels<N>& c, float* to) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      __stcg(reinterpret_cast<float4*>(to + i), make_float4(c[i], c[i + 1], c[i + 2], c[i + 3]));
    }
  } else {
    Store(c, to);
  }
}
template <int N>
__device__ inline void StoreBitsGlobal(const uint16_t (&bits)[N], void* to) {
  if constexpr (N == 4) {
    __stcg(static_cast<ushort4*>(to), make_ushort4(bits[0], bits[1], bits[2], bits[3]));
  } else {
    StoreBits(bits, to);
  }
}
template <int N, typename T>
__device__ inline void StoreGlobal(const Channels<N>& c, T* to) {
  static_assert(sizeof(T) == 2);
  uint16_t bits[N];
#pragma unroll
  for (int i = 0; i < N; ++i) bits[i] = FromFloat<T>(c[i]).bits;
  StoreBitsGlobal(bits, to);
}

template <int N>
__device__ inline Channels<N> Fill(float x) {
  Channels<N> c;
#pragma unroll
  for (int i = 0; i < N; ++i) c[i] = x;
  return c;
}

// What a token is after it has been through a ring of T.
template <typename T>
__device__ inline float RoundTo(float x) {
  return ToFloat(FromFloat<T>(x));
}

// ---- Sums without biases, of one channel (model/kernels/README.md)
//
// Numerator and denominator relative to exp(max), max the largest key: den >= 1 once a token is in.
struct Prefix {
  float num = 0.0F;
  float den = 0.0F;
  float max = kEmptyMax;
};

// One exponential: the larger of the two weights is 1. Here and in Combine each product and its sum
// are rounded once, by fmaf: left to nvcc, the choice could differ from kernel to kernel, and rows
// that are worked on in two ways would differ in their last bits.
__device__ inline void Insert(Prefix& sums, float k, float v) {
  const float e = Exp(-fabsf(k - sums.max));
  const bool rises = k > sums.max;
  sums.num = rises ? fmaf(sums.num, e, v) : fmaf(e, v, sums.num);
  sums.den = rises ? fmaf(sums.den, e, 1.0F) : sums.den + e;
  sums.max = fmaxf(sums.max, k);
}

// The sums of the tokens of both. Associative up to rounding; Prefix{} is the neutral element.
__device__ inline Prefix Combine(const Prefix& a, const Prefix& b) {
  const float e = Exp(-fabsf(b.max - a.max));
  const bool rises = b.max > a.max;
  Prefix sums;
  sums.num = rises ? fmaf(a.num, e, b.num) : fmaf(e, b.num, a.num);
  sums.den = rises ? fmaf(a.den, e, b.den) : fmaf(e, b.den, a.den);
  sums.max = fmaxf(a.max, b.max);
  return sums;
}

// num / den * sigmoid(q), by one reciprocal.
__device__ inline float Gated(float num, float den, float q) {
  return num * Reciprocal(den * (1.0F + Exp(-q)));
}

}  // namespace aft::kernels::cuda

#endif  // AFT_MODEL_KERNELS_CUDA_AFT_MATH_CUH_
