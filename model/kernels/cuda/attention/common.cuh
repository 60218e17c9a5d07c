#pragma once

#include <cstdint>

#include "model/kernels/attention/attention.h"
#include "model/kernels/cuda/channels.cuh"
#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"
#include "model/kernels/cuda/sums.cuh"
#include "model/kernels/cuda/types.h"

// Common code of the attention kernels. Positions and widths are 32-bit here, offsets into memory
// 64-bit.
namespace aft::kernels::cuda {

inline constexpr unsigned kWarp = 0xFFFFFFFFU;
// Running maxima start at this score, and keys with this or a lower score count as hidden. A hidden
// key gets the score -inf, so its weight exp(-inf - maximum) is 0 without a test, also before any
// visible key. The scores of visible keys may be far below kMaskedBelow.
inline constexpr float kNoMaximum = -3e38F;
#define AFT_HIDDEN (-INFINITY)

// AttentionParams and AttentionStateLayout as kernels read them.
struct AttentionShape {
  Score score;
  float scale;
  int heads;
  int score_width;
  int value_width;
  bool causal;
  int block;  // 0: not block-local
  bool global_token;
  bool full_decode;
  bool ring;
  const float* score_weight;
  const float* position_keys;
  int key_column;
  int value_column;
  int strength_column;
  // The layout of the state. first_key < 0: token 0 is not kept apart. head_keys: floats of a
  // head's keys.
  int span;
  int span_keys;
  int spans;
  int64_t first_key;
  int64_t first_value;
  int64_t keys;
  int64_t values;
  int64_t head_keys;
  int64_t head_values;

  __device__ bool stores_keys() const { return position_keys == nullptr; }
};

// Cosine attention cannot be block-local, because the state keeps token 0's key as it is, without
// division by its length. The heads are a dimension of the grid.
inline bool Supported(const AttentionParams& params, const In& packed, const Out& y) {
  return AreMixerTypes(packed.type, y.type) && params.heads <= kMaxRows &&
         !(params.score == Score::kCosine && params.block_size > 0);
}

inline AttentionShape MakeShape(const AttentionParams& p) {
  const AttentionStateLayout layout(p);
  AttentionShape shape = {};
  shape.score = p.score;
  shape.scale = p.scale;
  shape.heads = static_cast<int>(p.heads);
  shape.score_width = static_cast<int>(p.score_width);
  shape.value_width = static_cast<int>(p.value_width);
  shape.causal = p.causal;
  shape.block = static_cast<int>(p.block_size);
  shape.global_token = p.global_token && p.block_size > 0;
  shape.full_decode = p.full_decode;
  shape.ring = p.ring();
  shape.score_weight = p.score_weight;
  shape.position_keys = p.position_keys;
  shape.key_column = static_cast<int>(p.KeyColumn());
  shape.value_column = static_cast<int>(p.ValueColumn());
  shape.strength_column = static_cast<int>(p.StrengthColumn());
  shape.span = static_cast<int>(layout.span());
  shape.span_keys = static_cast<int>(RoundUpToKeyBlock(layout.span()));
  shape.spans = static_cast<int>(layout.spans());
  shape.first_key = layout.keeps_first() ? layout.FirstKey() : -1;
  shape.first_value = layout.FirstValue();
  shape.keys = layout.Keys();
  shape.values = layout.Values();
  shape.head_keys = layout.KeyFloatsPerHead();
  shape.head_values = layout.ValueFloatsPerHead();
  return shape;
}

__device__ inline float LoadNumber(const In& packed, int64_t i) {
  return static_cast<const float*>(packed.data)[i];
}
// For a matrix whose type is known only at launch. Not for inner loops.
__device__ inline void StoreNumber(const Out& to, int64_t i, float x) {
  ToOut(to, i, [&](auto* number) { Store(Channels<1>{{x}}, number); });
}

// 1 / |x| of `width` numbers from `first` on. All lanes must call it. In float64 nothing overflows.
__device__ inline float InverseLength(const In& x, int64_t first, int width) {
  double sum = 0;
  for (int c = static_cast<int>(threadIdx.x % 32); c < width; c += 32) {
    const double value = LoadNumber(x, first + c);
    sum += value * value;
  }
  sum = WarpSum(sum);
  return static_cast<float>(1.0 / fmax(sqrt(sum), kShortestLength));
}

__device__ inline float Softplus(float x) { return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x))); }

// Offsets in the keys and values of one head, in the state or in position keys. KeyOffset: column 0
// of key `at` of a span (columns are kKeyBlock floats apart). SpanKeys, SpanValues: the start of a
// span.
__device__ inline int64_t KeyOffset(int at, int width) {
  return at / kKeyBlock * width * kKeyBlock + at % kKeyBlock;
}
__device__ inline int64_t SpanKeys(const AttentionShape& shape, int span) {
  return int64_t{span % shape.spans} * shape.span_keys * shape.score_width;
}
__device__ inline int64_t SpanValues(const AttentionShape& shape, int span) {
  return int64_t{span % shape.spans} * shape.span * shape.value_width;
}

}  // namespace aft::kernels::cuda
