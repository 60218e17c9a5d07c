#pragma once

#include <cstdint>

#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"
#include "model/sampling/logit_rules.h"
#include "model/sampling/penalties.h"

// One row of logits as a block reads it, and results that its threads find together. RankedLogits
// (model/sampling/ranked_logits.h) does the same on the CPU.
namespace aft::kernels::cuda::sampler {

inline constexpr float kLargest = 3.402823466e38F;
inline constexpr int kMaxWarps = 16;
inline constexpr int kReadsAhead = 2;  // reads of four logits that each thread has in flight

__device__ inline float MinusInfinity() { return __uint_as_float(0xFF800000U); }

// Maps floats to integers that compare in the same way: the bits of negative floats are inverted,
// and the others get the highest bit.
__device__ inline uint32_t Ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float FromOrdered(uint32_t ordered) {
  return __uint_as_float(ordered >> 31 != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

// The row's best token.
struct Best {
  uint32_t ordered;  // its logit
  int32_t id;

  __device__ float logit() const { return FromOrdered(ordered); }
  __device__ bool exists() const { return logit() > MinusInfinity(); }
};

// A token's place in the order of preference; less is better. It is the distance of its logit below
// the best one's, in steps of Ordered, then the id. (Shuffles and atomics support this type.)
using Key = unsigned long long;
__device__ inline Key KeyOf(const Best& best, float logit, int32_t id) {
  return Key{best.ordered - Ordered(logit)} << 32 | static_cast<uint32_t>(id);
}
__device__ inline float LogitOf(const Best& best, Key key) {
  return FromOrdered(best.ordered - static_cast<uint32_t>(key >> 32));
}
__device__ inline int32_t IdOf(Key key) { return static_cast<int32_t>(key & 0xFFFFFFFFU); }

struct Four {
  float logit[4];
};

// With kAligned the logits are 16-byte aligned.
template <bool kAligned>
struct Row {
  const float* logits;
  int32_t vocab_size;
  const TokenCount* counts = nullptr;  // null if there are no penalties
  Penalties penalties = {};
  uint64_t output_index = 0;
  const LogitRule* rules = nullptr;  // null if there are no rules
  int32_t rule_count = 0;
  bool only_these = false;
  bool early = false;

  // Whether the logits differ from the raw ones.
  __device__ bool adjusts() const { return counts != nullptr || rules != nullptr; }

  // Calls use(id, four) for every fourth token id, with the four logits from id on, which are -inf
  // after the end of the vocabulary. id itself may be beyond that end.
  template <typename Use>
  __device__ void ForEachFour(Use use) const {
    const int32_t step = static_cast<int32_t>(4 * blockDim.x);
    int32_t id = static_cast<int32_t>(4 * threadIdx.x);
    Four ahead[kReadsAhead];
    for (int i = 0; i < kReadsAhead; ++i) ahead[i] = Read(id + i * step);
#pragma unroll 1
    while (id < vocab_size) {
#pragma unroll
      for (int i = 0; i < kReadsAhead; ++i, id += step) {
        const Four four = ahead[i];
        ahead[i] = Read(id + kReadsAhead * step);
        use(id, Clean(id, four));
      }
    }
  }

  __device__ float RawLogit(int32_t id) const { return Finite(logits[id]); }

 private:
  __device__ Four Read(int32_t id) const {
    if (kAligned && id + 4 <= vocab_size) {
      const float4 read = __ldg(reinterpret_cast<const float4*>(logits + id));
      return {{read.x, read.y, read.z, read.w}};
    }
    Four four;
    for (int i = 0; i < 4; ++i) {
      four.logit[i] = id + i < vocab_size ? __ldg(logits + id + i) : MinusInfinity();
    }
    return four;
  }

  // Removes NaN, +inf and -0, and applies rules and penalties.
  __device__ Four Clean(int32_t id, Four four) const {
    for (int i = 0; i < 4; ++i) four.logit[i] = Finite(four.logit[i]);
    if (rules != nullptr) Rule(id, four);
    if (counts == nullptr) return four;
    for (int i = 0; i < 4; ++i) {
      if (id + i < vocab_size) four.logit[i] = Pay(four.logit[i], counts[id + i]);
    }
    return four;
  }

  __device__ void Rule(int32_t id, Four& four) const {
    int32_t next = FirstRule(rules, rule_count, id);
    for (int i = 0; i < 4; ++i) {
      if (next < rule_count && rules[next].id == id + i) {
        four.logit[i] = Ruled(four.logit[i], rules[next], early) + 0.0F;
        ++next;
      } else if (only_these) {
        four.logit[i] = MinusInfinity();
      }
    }
  }

  // + 0 turns -0 into 0: they are equal, and must have equal keys.
  __device__ static float Finite(float logit) {
    return logit == logit ? min(logit, kLargest) + 0.0F : MinusInfinity();
  }

  __device__ float Pay(float logit, const TokenCount& count) const {
    return count.use == 0 ? logit : Penalised(logit, count, penalties, output_index) + 0.0F;
  }
};

__device__ inline int LaneOf() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int WarpOf() { return static_cast<int>(threadIdx.x / 32); }
__device__ inline int Warps() { return static_cast<int>(blockDim.x / 32); }

// A token with its score in the draw. The higher score wins; ties go to the lower id.
struct Drawn {
  double score;
  int32_t id;
};
__device__ inline Drawn Winner(const Drawn& a, const Drawn& b) {
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

template <typename T>
__device__ T FromLane(T value, int bits) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, bits);
}
template <>
__device__ inline Drawn FromLane<Drawn>(Drawn value, int bits) {
  return {__shfl_xor_sync(0xFFFFFFFFU, value.score, bits),
          __shfl_xor_sync(0xFFFFFFFFU, value.id, bits)};
}

// Applies `join` to the block's values, always in the same order. Every thread gets the result.
// `shared` holds kMaxWarps values.
template <typename T, typename Join>
__device__ T Reduce(T value, T* shared, Join join) {
  for (int bits = 16; bits > 0; bits /= 2) value = join(value, FromLane(value, bits));
  if (LaneOf() == 0) shared[WarpOf()] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < Warps(); ++warp) value = join(value, shared[warp]);
  __syncthreads();
  return value;
}

// The sum of the values of the threads before this one. *total is set to the sum of all.
template <typename T>
__device__ T SumBefore(T value, T* shared, T* total) {
  T sum = value;
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const T other = __shfl_up_sync(0xFFFFFFFFU, sum, static_cast<unsigned>(lanes));
    if (LaneOf() >= lanes) sum += other;
  }
  if (LaneOf() == 31) shared[WarpOf()] = sum;
  __syncthreads();
  T before = sum - value;
  *total = 0;
  for (int warp = 0; warp < Warps(); ++warp) {
    if (warp < WarpOf()) before += shared[warp];
    *total += shared[warp];
  }
  __syncthreads();
  return before;
}

template <bool kAligned>
__device__ Best FindBest(const Row<kAligned>& row, Key* shared) {
  Key best = 0;
  row.ForEachFour([&](int32_t id, const Four& four) {
    for (int i = 0; i < 4; ++i) {
      const Key key =
          Key{Ordered(four.logit[i])} << 32 | static_cast<uint32_t>(0x7FFFFFFF - (id + i));
      best = max(best, key);
    }
  });
  best = Reduce(best, shared, [](Key a, Key b) { return max(a, b); });
  return {static_cast<uint32_t>(best >> 32), 0x7FFFFFFF - IdOf(best)};
}

}  // namespace aft::kernels::cuda::sampler
