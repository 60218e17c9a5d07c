#pragma once

#include <cstdint>

#include "model/kernels/cuda/attention/common.cuh"

// Attention of one token over the stored keys. A block takes one head of one row, or a part of it,
// kSplitBlocks key blocks, if the context is long. A warp takes one key block of 32 at a time; its
// lanes stand first for keys, then for columns of the values. How a row is split depends on its
// position alone.
namespace aft::kernels::cuda {

inline constexpr int kStepWarps = 8;
inline constexpr int kSplitBlocks = 16;  // key blocks: 512 keys

struct AttentionStepArgs {
  AttentionShape shape;
  StepRows rows;
  In packed;
  State state;
  Out y;
  float* partial;  // [rows, heads, splits, 2 + value_width]: maximum, sum, sums of values
  int splits;
  int split_blocks;  // blocks that share a row's splits
  int column_chunks;
};

// The stored keys that the token at `position` sees, in blocks of 32. Token 0 and the token itself
// may be stored apart from them.
struct SeenBlocks {
  __device__ SeenBlocks(const AttentionShape& shape, int position, bool generated) {
    local = shape.block > 0 && !(shape.full_decode && generated);
    per_span = shape.span_keys / static_cast<int>(kKeyBlock);
    own = position / shape.span;
    own_seen = position % shape.span;
    first = local && own > 1 ? own - 1 : 0;
    if (shape.stores_keys()) {
      blocks = (own - first) * per_span + (own_seen + 31) / 32;
    } else {
      blocks = (position + 31) / 32;
    }
    splits = max(1, (blocks + kSplitBlocks - 1) / kSplitBlocks);
  }

  bool local;
  int per_span;
  int own;       // span of the token
  int own_seen;  // keys of that span before the token
  int first;     // first span that the token sees
  int blocks;
  int splits;
};

// The sums of one warp so far. In a row of values, lane l holds `kVector` columns from kVector * (l
// % row_lanes) on, and those 32 * kVector further. Lanes l and l + row_lanes hold parts of the same
// columns.
template <int kVector, int kGroups>
struct StepSums {
  static constexpr int kKeyLanes = 32 / kVector;  // lanes over the 32 keys of a block
  float max = kNoMaximum;
  float sum = 0.0F;  // over lanes below kKeyLanes
  float acc[kGroups][kVector] = {};

  __device__ void Rescale(float scale) {
    sum *= scale;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) acc[g][i] *= scale;
    }
  }
};

template <int kVector>
__device__ inline void LoadVector(const float* from, float (&to)[kVector]) {
  if constexpr (kVector == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
  } else {
    to[0] = from[0];
  }
}

// The columns of values that a block computes.
struct StepColumns {
  int first;
  int end;
  int row_lanes;  // lanes that share a row: a power of two
};

struct StepShared {
  __host__ __device__ StepShared(SharedLayout& shared, int score_width, int columns, int warps)
      : q(shared.Take<float>(score_width)),
        weights(shared.Take<float>(warps * 32)),
        max(shared.Take<float>(warps)),
        sum(shared.Take<float>(warps)),
        acc(shared.Take<float>(int64_t{warps} * columns)) {}
  float* q;        // the query times its factor
  float* weights;  // [warps, 32]
  float* max;
  float* sum;
  float* acc;  // [warps, columns]
};

template <bool kAdditive>
__device__ inline float ScoreTerm(float q, float k, const float* weight, int c) {
  return kAdditive ? weight[c] * Tanh(q + k) : q * k;
}

// Adds `seen` > 0 keys of one block; k [score_width, 32], v [seen, value_width].
template <int kVector, int kGroups, bool kAdditive>
__device__ inline void AddKeyBlock(StepSums<kVector, kGroups>& sums, const float* k, const float* v,
                                   int seen, const float* q, const float* weight, int score_width,
                                   int value_width, const StepColumns& columns, float* weights) {
  constexpr int kKeyLanes = StepSums<kVector, kGroups>::kKeyLanes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int key = lane % kKeyLanes * kVector;
  float score[kVector] = {};
  const auto add = [&](int c, const float(&keys)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) score[i] += ScoreTerm<kAdditive>(q[c], keys[i], weight, c);
  };
  // The token's own key is after the last one; the block of other value columns may be writing it.
  constexpr bool kMayBeShared = kGroups > 1;
  if (!kMayBeShared || seen >= static_cast<int>(kKeyBlock)) {
#pragma unroll(kAdditive ? 2 : 8)
    for (int c = lane / kKeyLanes; c < score_width; c += kVector) {
      float keys[kVector];
      LoadVector(k + c * static_cast<int>(kKeyBlock) + key, keys);
      add(c, keys);
    }
  } else {
#pragma unroll 1
    for (int c = lane / kKeyLanes; c < score_width; c += kVector) {
      float keys[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        keys[i] = key + i < seen ? k[c * static_cast<int>(kKeyBlock) + key + i] : 0.0F;
      }
      add(c, keys);
    }
  }
  float top = sums.max;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
#pragma unroll
    for (int bit = kKeyLanes; bit < 32; bit *= 2) score[i] += __shfl_xor_sync(kWarp, score[i], bit);
    if (key + i >= seen) score[i] = AFT_HIDDEN;
    top = fmaxf(top, score[i]);
  }
#pragma unroll
  for (int bit = kKeyLanes / 2; bit > 0; bit /= 2) {
    top = fmaxf(top, __shfl_xor_sync(kWarp, top, bit));
  }
  sums.Rescale(Exp(sums.max - top));
  sums.max = top;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float weight_of_key = Exp(score[i] - top);
    sums.sum += weight_of_key;
    if (lane < kKeyLanes) weights[key + i] = weight_of_key;
  }
  __syncwarp();
  const int rows = 32 / columns.row_lanes;
#pragma unroll 4
  for (int j = lane / columns.row_lanes; j < seen; j += rows) {
    const float p = weights[j];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int column = columns.first + (lane % columns.row_lanes + 32 * g) * kVector;
      float value[kVector] = {};
      if (column < columns.end) LoadVector(v + int64_t{j} * value_width + column, value);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums.acc[g][i] += p * value[i];
    }
  }
  __syncwarp();
}

// Adds one key, whose columns are key(c) and whose values are value(c).
template <bool kAdditive, int kVector, int kGroups, typename Key, typename Value>
__device__ inline void AddOneKey(StepSums<kVector, kGroups>& sums, const float* q,
                                 const float* weight, int score_width, const StepColumns& columns,
                                 const Key& key, const Value& value) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float score = 0.0F;
  for (int c = lane; c < score_width; c += 32) {
    score += ScoreTerm<kAdditive>(q[c], key(c), weight, c);
  }
  score = WarpSum(score);
  const float top = fmaxf(sums.max, score);
  sums.Rescale(Exp(sums.max - top));
  sums.max = top;
  const float p = Exp(score - top);
  if (lane % StepSums<kVector, kGroups>::kKeyLanes == 0) sums.sum += p;
  if (lane >= columns.row_lanes) return;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int column = columns.first + (lane + 32 * g) * kVector + i;
      if (column < columns.end) sums.acc[g][i] += p * value(column);
    }
  }
}

// One warp stores the token's key, and its values for the columns of its block, in the state.
__device__ inline void StoreToken(const AttentionStepArgs& args, const AttentionShape& shape,
                                  const SeenBlocks& seen, const StepColumns& columns, int64_t row,
                                  int32_t slot, int head, bool with_key) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t k = row * args.packed.stride + shape.key_column + int64_t{head} * shape.score_width;
  const int64_t v =
      row * args.packed.stride + shape.value_column + int64_t{head} * shape.value_width;
  float* const state = args.state.base + slot * args.state.slot_stride;
  const bool is_first = seen.own == 0 && seen.own_seen == 0 && shape.first_key >= 0;
  float* const to_v = state + shape.values + head * shape.head_values +
                      SpanValues(shape, seen.own) + int64_t{seen.own_seen} * shape.value_width;
  for (int c = columns.first + lane; c < columns.end; c += 32) {
    const float x = LoadNumber(args.packed, v + c);
    to_v[c] = x;
    if (is_first) state[shape.first_value + int64_t{head} * shape.value_width + c] = x;
  }
  if (!shape.stores_keys() || !with_key) return;
  float inverse = 1.0F;
  if (shape.score == Score::kCosine) inverse = InverseLength(args.packed, k, shape.score_width);
  float* const to_k = state + shape.keys + head * shape.head_keys + SpanKeys(shape, seen.own) +
                      KeyOffset(seen.own_seen, shape.score_width);
  for (int c = lane; c < shape.score_width; c += 32) {
    const float x = LoadNumber(args.packed, k + c);
    to_k[int64_t{c} * kKeyBlock] = x * inverse;
    if (is_first) state[shape.first_key + int64_t{head} * shape.score_width + c] = x;
  }
}

template <int kVector, int kGroups, bool kAdditive>
__global__ void __launch_bounds__(kStepWarps * 32, kVector == 1 || kGroups > 1 ? 2 : 3)
    AttentionStepKernel(const AttentionStepArgs args) {
  const AttentionShape& shape = args.shape;
  const int tid = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = tid / 32;
  const int warps = threads / 32;
  const int lane = tid % 32;
  unsigned index = blockIdx.x;
  const int chunk = static_cast<int>(index % static_cast<unsigned>(args.column_chunks));
  index /= static_cast<unsigned>(args.column_chunks);
  const int first_split = static_cast<int>(index % static_cast<unsigned>(args.split_blocks));
  index /= static_cast<unsigned>(args.split_blocks);
  const int head = static_cast<int>(index % static_cast<unsigned>(shape.heads));
  const int64_t row = index / static_cast<unsigned>(shape.heads);

  constexpr int kColumns = 32 * kVector * kGroups;
  const int first_column = chunk * kColumns;
  int row_lanes = 32;
  while (kGroups == 1 && row_lanes > 1 && row_lanes / 2 * kVector >= shape.value_width) {
    row_lanes /= 2;
  }
  const StepColumns columns = {first_column, min(shape.value_width, first_column + kColumns),
                               row_lanes};
  const int64_t to = row * args.y.stride + head * shape.value_width;
  const int slot = args.rows.slot[row];
  if (slot < 0) {
    if (args.splits == 1) {
      for (int c = columns.first + tid; c < columns.end; c += threads) {
        StoreNumber(args.y, to + c, 0.0F);
      }
    }
    return;
  }
  const int position = static_cast<int>(args.rows.position[row]);
  const bool generated = args.rows.generated != nullptr && args.rows.generated[row] != 0;
  const SeenBlocks seen(shape, position, generated);
  if (first_split >= seen.splits) return;

  SharedLayout layout(DynamicShared());
  const StepShared shared(layout, shape.score_width, kColumns, warps);
  const int64_t q = row * args.packed.stride + int64_t{head} * shape.score_width;
  float factor = shape.score == Score::kDot ? shape.scale : 1.0F;
  if (shape.score == Score::kCosine) {
    factor =
        Softplus(LoadNumber(args.packed, row * args.packed.stride + shape.strength_column + head)) *
        InverseLength(args.packed, q, shape.score_width);
  }
#pragma unroll 1  // unrolled, its loads would take registers that the loop below needs
  for (int c = tid; c < shape.score_width; c += threads) {
    shared.q[c] = LoadNumber(args.packed, q + c) * factor;
  }
  const float* const weight =
      kAdditive ? shape.score_weight + int64_t{head} * shape.score_width : nullptr;
  __syncthreads();

  for (int split = first_split; split < seen.splits; split += args.split_blocks) {
    // They are computed again for each split, as loads in flight need the registers.
    const int own_head = Opaque(head);
    float* const state = args.state.base + slot * args.state.slot_stride;
    float* const keys =
        shape.stores_keys() ? state + shape.keys + own_head * shape.head_keys : nullptr;
    float* const values = state + shape.values + own_head * shape.head_values;
    const int64_t k =
        row * args.packed.stride + shape.key_column + int64_t{own_head} * shape.score_width;
    const int64_t v =
        row * args.packed.stride + shape.value_column + int64_t{own_head} * shape.value_width;
    StepSums<kVector, kGroups> sums;
    if (split == seen.splits - 1 && warp == 0) {
      float inverse = 1.0F;
      if (shape.score == Score::kCosine) inverse = InverseLength(args.packed, k, shape.score_width);
      const float* own = nullptr;
      if (!shape.stores_keys()) {
        own = shape.position_keys +
              KeyOffset(seen.own * shape.span + seen.own_seen, shape.score_width);
      }
      AddOneKey<kAdditive>(
          sums, shared.q, weight, shape.score_width, columns,
          [&](int c) {
            return own != nullptr ? own[int64_t{c} * kKeyBlock]
                                  : LoadNumber(args.packed, k + c) * inverse;
          },
          [&](int c) { return LoadNumber(args.packed, v + c); });
    }
    if (split == 0 && warp == warps - 1 && shape.global_token && seen.first > 0) {
      const bool apart = shape.first_key >= 0;
      const float* const first_k =
          apart ? state + shape.first_key + int64_t{head} * shape.score_width : keys;
      const float* const first_v =
          apart ? state + shape.first_value + int64_t{head} * shape.value_width : values;
      AddOneKey<kAdditive>(
          sums, shared.q, weight, shape.score_width, columns,
          [&](int c) { return first_k[apart ? c : int64_t{c} * kKeyBlock]; },
          [&](int c) { return first_v[c]; });
    }
    const int end = min(seen.blocks, (split + 1) * kSplitBlocks);
    for (int block = split * kSplitBlocks + warp; block < end; block += warps) {
      const int span = shape.stores_keys() ? seen.first + block / seen.per_span : 0;
      const int at = shape.stores_keys() ? block % seen.per_span * 32 : block * 32;
      const int seen_in_span = span == seen.own ? seen.own_seen : shape.span;
      const float* const block_k =
          (shape.stores_keys() ? keys + SpanKeys(shape, span) : shape.position_keys) +
          int64_t{at} * shape.score_width;
      AddKeyBlock<kVector, kGroups, kAdditive>(
          sums, block_k, values + SpanValues(shape, span) + int64_t{at} * shape.value_width,
          min(32, seen_in_span - at), shared.q, weight, shape.score_width, shape.value_width,
          columns, shared.weights + warp * 32);
    }

    // Combines the warps' sums in order.
    float sum = sums.sum;
#pragma unroll
    for (int bit = StepSums<kVector, kGroups>::kKeyLanes / 2; bit > 0; bit /= 2) {
      sum += __shfl_xor_sync(kWarp, sum, bit);
    }
    if (lane == 0) {
      shared.max[warp] = sums.max;
      shared.sum[warp] = sum;
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float x = sums.acc[g][i];
        for (int bit = row_lanes; bit < 32; bit *= 2) x += __shfl_xor_sync(kWarp, x, bit);
        const int column = (lane % row_lanes + 32 * g) * kVector + i;
        if (lane < row_lanes) shared.acc[warp * kColumns + column] = x;
      }
    }
    __syncthreads();
    float top = kNoMaximum;
    for (int w = 0; w < warps; ++w) top = fmaxf(top, shared.max[w]);
    float total = 0.0F;
    for (int w = 0; w < warps; ++w) total += shared.sum[w] * Exp(shared.max[w] - top);
    float* const partial =
        args.partial + (int64_t{index} * args.splits + split) * (shape.value_width + 2);
    if (args.splits > 1 && tid == 0 && chunk == 0) {
      partial[0] = top;
      partial[1] = total;
    }
    for (int c = tid; c < columns.end - columns.first; c += threads) {
      float x = 0.0F;
      for (int w = 0; w < warps; ++w) x += shared.acc[w * kColumns + c] * Exp(shared.max[w] - top);
      if (args.splits > 1) {
        partial[2 + columns.first + c] = x;
      } else {
        StoreNumber(args.y, to + columns.first + c, total == 0.0F ? 0.0F : x / total);
      }
    }
    __syncthreads();
  }
  // This comes last, when no warp reads the block of keys that contains the token's place any more.
  if (warp == 0 && (seen.splits - 1 - first_split) % args.split_blocks == 0) {
    StoreToken(args, shape, seen, columns, row, slot, head, chunk == 0);
  }
}

// Combines the results of the splits of each row and head in order. There is a block for each.
__global__ void AttentionCombineKernel(const AttentionStepArgs args) {
  const AttentionShape& shape = args.shape;
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(shape.heads));
  const int64_t row = blockIdx.x / static_cast<unsigned>(shape.heads);
  const int64_t to = row * args.y.stride + head * shape.value_width;
  const int tid = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const bool padding = args.rows.slot[row] < 0;
  int splits = 0;
  if (!padding) {
    const bool generated = args.rows.generated != nullptr && args.rows.generated[row] != 0;
    splits = SeenBlocks(shape, static_cast<int>(args.rows.position[row]), generated).splits;
  }
  const int64_t stride = shape.value_width + 2;
  const float* const partial = args.partial + int64_t{blockIdx.x} * args.splits * stride;
  float top = kNoMaximum;
  for (int s = 0; s < splits; ++s) top = fmaxf(top, partial[s * stride]);
  float total = 0.0F;
  for (int s = 0; s < splits; ++s) {
    total += partial[s * stride + 1] * Exp(partial[s * stride] - top);
  }
  for (int c = tid; c < shape.value_width; c += threads) {
    float x = 0.0F;
    for (int s = 0; s < splits; ++s) {
      x += partial[s * stride + 2 + c] * Exp(partial[s * stride] - top);
    }
    StoreNumber(args.y, to + c, total == 0.0F ? 0.0F : x / total);
  }
}

}  // namespace aft::kernels::cuda
