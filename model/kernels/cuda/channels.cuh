#pragma once

#include <cstdint>

#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"
#include "model/kernels/cuda/types.h"

// A thread's share of a row: neighbouring channels, and how they are read and written.
namespace aft::kernels::cuda {

// N = 1, 2, 4 or 8.
template <int N>
struct Channels {
  __device__ float& operator[](int i) { return x[i]; }
  __device__ float operator[](int i) const { return x[i]; }

  float x[N];
};

template <int N>
__device__ inline Channels<N> Fill(float x) {
  Channels<N> c;
#pragma unroll
  for (int i = 0; i < N; ++i) c[i] = x;
  return c;
}

// The value that x has after it was stored as a T.
template <typename T>
__device__ inline float RoundTo(float x) {
  return ToFloat(FromFloat<T>(x));
}

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

// T is Bf16 or Fp16. A word holds two of them, the first in the lower half.
template <typename T>
__device__ inline unsigned Pack(float low, float high) {
  return FromFloat<T>(low).bits | static_cast<unsigned>(FromFloat<T>(high).bits) << 16;
}
template <>
__device__ inline unsigned Pack<Bf16>(float low, float high) {
  return PackBf16(low, high);
}
template <int N, typename T>
__device__ inline Channels<N> Load(const T* from) {
  static_assert(sizeof(T) == 2);
  Channels<N> c;
  if constexpr (N == 1) {
    c[0] = ToFloat(*from);
  } else {
    uint4 words = {};
    if constexpr (N == 2) {
      words.x = *reinterpret_cast<const unsigned*>(from);
    } else if constexpr (N == 4) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      words.x = two.x;
      words.y = two.y;
    } else {
      words = *reinterpret_cast<const uint4*>(from);
    }
    const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      c[2 * i] = ToFloat(T{static_cast<uint16_t>(pairs[i] & 0xFFFFU)});
      c[2 * i + 1] = ToFloat(T{static_cast<uint16_t>(pairs[i] >> 16)});
    }
  }
  return c;
}
// Rounds to nearest even.
template <int N, typename T>
__device__ inline void Store(const Channels<N>& c, T* to) {
  static_assert(sizeof(T) == 2);
  if constexpr (N == 1) {
    *to = FromFloat<T>(c[0]);
  } else if constexpr (N == 2) {
    *reinterpret_cast<unsigned*>(to) = Pack<T>(c[0], c[1]);
  } else if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(Pack<T>(c[0], c[1]), Pack<T>(c[2], c[3]));
  } else {
    *reinterpret_cast<uint4*>(to) = make_uint4(Pack<T>(c[0], c[1]), Pack<T>(c[2], c[3]),
                                               Pack<T>(c[4], c[5]), Pack<T>(c[6], c[7]));
  }
}

template <int N>
__device__ inline Channels<N> Load(const int8_t* from) {
  static_assert(N == 4);
  const unsigned word = *reinterpret_cast<const unsigned*>(from);
  Channels<N> c;
#pragma unroll
  for (int i = 0; i < N; ++i) c[i] = static_cast<float>(static_cast<int8_t>(word >> 8 * i & 0xFFU));
  return c;
}

// Stores to global memory. nvcc splits some vector stores into scalar ones, for example of a token
// that is copied into a ring or of sums after a barrier. It does not split these.
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
template <int N, typename T>
__device__ inline void StoreGlobal(const Channels<N>& c, T* to) {
  if constexpr (N == 4) {
    __stcg(reinterpret_cast<uint2*>(to), make_uint2(Pack<T>(c[0], c[1]), Pack<T>(c[2], c[3])));
  } else {
    Store(c, to);
  }
}

// ---- Channels of which only the first `count` exist; the others read as 0

// With kVector, either all channels exist or none, and they are aligned for vector accesses.
template <int N, bool kVector, typename T>
__device__ inline Channels<N> LoadExisting(const T* from, int64_t count) {
  Channels<N> c = Fill<N>(0.0F);
  if constexpr (kVector) {
    if (count > 0) c = Load<N>(from);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) c[i] = ToFloat(from[i]);
    }
  }
  return c;
}

template <int N, bool kVector, typename T>
__device__ inline void StoreExisting(const Channels<N>& c, T* to, int64_t count) {
  if constexpr (kVector) {
    if (count > 0) Store<N>(c, to);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) to[i] = FromFloat<T>(c[i]);
    }
  }
}

// Calls store(to) with a pointer to number `i` of the matrix y. The pointer has y's type, which is
// the same for all threads.
template <typename Store>
__device__ inline void ToOut(const Out& y, int64_t i, const Store& store) {
  if (y.type == Number::kFp32) {
    store(static_cast<float*>(y.data) + i);
  } else if (y.type == Number::kBf16) {
    store(static_cast<Bf16*>(y.data) + i);
  } else {
    store(static_cast<Fp16*>(y.data) + i);
  }
}
template <int N, bool kVector>
__device__ inline void StoreOut(const Out& y, int64_t row, int64_t channel, const Channels<N>& c,
                                int64_t count) {
  ToOut(y, row * y.stride + channel, [&](auto* to) { StoreExisting<N, kVector>(c, to, count); });
}

// Host: whether mixers have kernels for these types.
inline bool AreMixerTypes(Number in, Number out) {
  return in == Number::kFp32 && !IsQuantized(out);
}

// Host: calls fn(Y{}) with the type of an output whose input is fp32.
template <class Fn>
int ForOutput(Number in, Number out, const Fn& fn) {
  if (in != Number::kFp32) return cudaErrorInvalidValue;
  if (out == Number::kFp32) return fn(float{});
  if (out == Number::kBf16) return fn(Bf16{});
  if (out == Number::kFp16) return fn(Fp16{});
  return cudaErrorInvalidValue;
}

}  // namespace aft::kernels::cuda
