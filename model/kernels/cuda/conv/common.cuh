#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/math.cuh"
#include "model/kernels/cuda/conv/conv.h"
#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"

// Common code of the AFT-conv kernels.
namespace aft::kernels::cuda {

// A layer's widths and constants in the form that kernels read.
struct ConvDims {
  explicit ConvDims(const ConvModel& model)
      : hid(static_cast<int>(model.hid)),
        heads(static_cast<int>(model.heads)),
        width(static_cast<int>(model.hid / model.heads)),
        taps(static_cast<int>(model.taps)),
        filter(model.filter),
        wide(model.wide),
        bf16_ring(model.ring == Number::kBf16) {}

  __host__ __device__ int rows() const { return taps - 1; }  // of each ring
  // Offsets in a row of packed, which holds queries, keys and values.
  __host__ __device__ int keys() const { return hid; }
  __host__ __device__ int values() const { return hid + heads; }
  // Offsets in a state or in sums: numerators [hid], denominators [heads], maxima [heads].
  __host__ __device__ int den() const { return hid; }
  __host__ __device__ int max() const { return hid + heads; }
  __host__ __device__ int sums() const { return hid + 2 * heads; }

  int hid;
  int heads;
  int width;  // channels of a head
  int taps;
  const float* filter;
  bool wide;
  bool bf16_ring;
};

// Neighbouring numbers at any alignment. `aligned`: Load and Store of channels.cuh may be used.
template <int N, typename T>
__device__ inline Channels<N> Load(const T* from, bool aligned) {
  if (aligned) return Load<N>(from);
  Channels<N> c;
#pragma unroll
  for (int i = 0; i < N; ++i) c[i] = ToFloat(from[i]);
  return c;
}
template <int N, typename T>
__device__ inline void Store(const Channels<N>& c, T* to, bool aligned) {
  if (aligned) {
    Store<N>(c, to);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = FromFloat<T>(c[i]);
  }
}

// 16 bytes of a ring, or one number, as in memory, so that loads in flight take few registers.
template <typename Ring, int N>
struct RingVector {
  static_assert(N * sizeof(Ring) == 16);

  __device__ void Read(const Ring* from) { raw = *reinterpret_cast<const uint4*>(from); }
  __device__ Channels<N> Get() const {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    Channels<N> c;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (N == 4) {
        c[i] = __uint_as_float(words[i]);
      } else {
        c[2 * i] = __uint_as_float(words[i] << 16);
        c[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
      }
    }
    return c;
  }

  uint4 raw;
};
template <typename Ring>
struct RingVector<Ring, 1> {
  __device__ void Read(const Ring* from) { raw = *from; }
  __device__ Channels<1> Get() const { return Fill<1>(ToFloat(raw)); }

  Ring raw;
};

// x rounded as a token that enters a state with these rings.
__device__ inline float Entering(float x, bool bf16_ring) {
  return bf16_ring ? RoundTo<Bf16>(x) : x;
}

// Host: whether all addresses first + i * stride + offset (in numbers) are multiples of 16 bytes.
template <typename T>
bool Aligned16(const void* first, int64_t stride, int64_t offset) {
  constexpr auto kNumbers = static_cast<int64_t>(16 / sizeof(T));
  return Aligned(first, 16) && stride % kNumbers == 0 && offset % kNumbers == 0;
}

// Host: whether the model's numbers are valid.
inline bool IsValid(const ConvModel& model) {
  constexpr int64_t kMost = int64_t{1} << 24;
  return model.hid > 0 && model.hid <= kMost && model.heads > 0 && model.hid % model.heads == 0 &&
         model.taps > 0 && model.taps <= kMost && model.filter != nullptr &&
         (model.causal ? !model.grid : model.taps % 2 == 1);
}

}  // namespace aft::kernels::cuda
