#pragma once

#include <cstdint>

#include "model/kernels/cuda/attention/rows.cuh"

// Kernels that run before and after the attention of a prompt chunk.
namespace aft::kernels::cuda {

inline constexpr int kStoreWarps = 4;
inline constexpr int kStoreTokens = 32;

// kCosine: computes factors [tokens, heads, 2], with a warp for each pair: softplus(strength) / |q|
// and 1 / |k|.
__global__ void __launch_bounds__(kStoreWarps * 32)
    AttentionFactorsKernel(AttentionShape shape, In packed, int64_t tokens, float* factors) {
  const int64_t index = int64_t{blockIdx.x} * kStoreWarps + threadIdx.x / 32;
  if (index >= tokens * shape.heads) return;
  const int head = static_cast<int>(index % shape.heads);
  const int64_t row = index / shape.heads * packed.stride;
  const int64_t q = row + int64_t{head} * shape.score_width;
  const float of_query = InverseLength(packed, q, shape.score_width) *
                         Softplus(LoadNumber(packed, row + shape.strength_column + head));
  const float of_key = InverseLength(packed, q + shape.key_column, shape.score_width);
  if (threadIdx.x % 32 == 0) {
    factors[index * 2] = of_query;
    factors[index * 2 + 1] = of_key;
  }
}

// Writes the chunks' keys and values into the states; into a ring only those that will remain in
// it. It runs after all reads of the old states. Grid: tiles of kStoreTokens tokens; heads.
__global__ void __launch_bounds__(kStoreWarps * 32) AttentionStoreKernel(const AttendArgs args) {
  const AttentionShape& shape = args.shape;
  const QueryTile tile = FindTile(args, blockIdx.x, kStoreTokens);
  if (tile.end <= tile.begin || tile.slot < 0) return;
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const HeadKeys keys(args, tile, head);
  const float* const packed = static_cast<const float*>(args.packed.data);
  float* const state = args.state.base + tile.slot * args.state.slot_stride;

  if (tile.begin == 0 && shape.first_key >= 0) {
    float* const first_k = state + shape.first_key + int64_t{head} * shape.score_width;
    float* const first_v = state + shape.first_value + int64_t{head} * shape.value_width;
    for (int c = static_cast<int>(threadIdx.x); c < shape.score_width; c += kStoreWarps * 32) {
      first_k[c] = packed[keys.PackedKey(0) + c];
    }
    for (int c = static_cast<int>(threadIdx.x); c < shape.value_width; c += kStoreWarps * 32) {
      first_v[c] = packed[keys.PackedValue(0) + c];
    }
  }
  // In a ring, only tokens whose place no later token of the chunk takes are stored. So the state
  // has the bytes that storing the tokens one by one would leave.
  const int begin =
      shape.ring ? max(tile.begin, tile.tokens_end - shape.spans * shape.span) : tile.begin;
  if (begin >= tile.end) return;

  float* const v = state + shape.values + head * shape.head_values;
  for (int j = begin + warp; j < tile.end; j += kStoreWarps) {
    float* const to =
        v + SpanValues(shape, j / shape.span) + int64_t{j % shape.span} * shape.value_width;
    for (int c = lane; c < shape.value_width; c += 32) to[c] = packed[keys.PackedValue(j) + c];
  }
  if (!shape.stores_keys()) return;

  // Keys are transposed through shared memory: lanes read columns and write tokens.
  SharedLayout layout(DynamicShared());
  float* const k = layout.Take<float>(32 * 33);
  const int j = begin + lane;
  float* const to = state + shape.keys + head * shape.head_keys + SpanKeys(shape, j / shape.span) +
                    KeyOffset(j % shape.span, shape.score_width);
  for (int c0 = 0; c0 < shape.score_width; c0 += 32) {
    for (int i = warp; i < tile.end - begin; i += kStoreWarps) {
      const int c = c0 + lane;
      if (c >= shape.score_width) continue;
      k[lane * 33 + i] = packed[keys.PackedKey(begin + i) + c] * keys.KeyFactor(begin + i);
    }
    __syncthreads();
    for (int i = warp; i < min(32, shape.score_width - c0); i += kStoreWarps) {
      if (j < tile.end) to[int64_t{c0 + i} * kKeyBlock] = k[i * 33 + lane];
    }
    __syncthreads();
  }
}

}  // namespace aft::kernels::cuda
