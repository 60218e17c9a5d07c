#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/rows.cuh"

namespace aft::kernels::cuda {

inline constexpr int kAftColumns = 16;  // columns of E that are computed at a time
inline constexpr int kAftWeights = kAftTokens * kAftColumns;

struct AftTileShared {
  __host__ __device__ AftTileShared(SharedLayout& shared, int prefixes)
      : weights(shared.Take<float>(2 * kAftWeights)),
        lifts(shared.Take<float>(kAftTokens)),
        before(shared.Take<Prefix>(prefixes)) {}

  float* weights;  // two buffers
  float* lifts;
  Prefix* before;
};

// The tokens, in whole tiles, that a window reaches beyond a tile on each side when not causal.
__device__ inline int AftReach(int window) {
  return (max(window - 1, 0) + kAftTokens - 1) / kAftTokens * kAftTokens;
}

// Which tokens the tokens of one tile see, and with what bias. A tile's columns are the tokens that
// are not in the prefixes before its first token. When kCausal, these hold the tokens that have
// left the window (two prefixes: by the parity of the block). Otherwise they hold the tokens before
// and after the columns.
template <int kPrefixes, bool kCausal>
struct AftWindow {
  __device__ AftWindow(const AftArgs& args, const AftRow& row, int index)
      : first(index * kAftTokens),
        row_from(max(row.begin, first)),
        row_to(min(row.end, first + kAftTokens)),
        row_tiles((2U << ((row_to - 1 - first) / 16)) - (1U << ((row_from - first) / 16))),
        model(args.model) {
    if constexpr (kCausal) {
      column_from = max(row_from - max(window() - 1, 0), 0);
      column_to = row_to;
      if constexpr (kPrefixes == 2) {
        const int own = row_from / Block();
        const int since_own = Since(own);
        const int since_other = Since(own - 1);
        since_even = own % 2 == 0 ? since_own : since_other;
        since_odd = own % 2 == 0 ? since_other : since_own;
      }
    } else {
      const int reach = AftReach(window());
      column_from = max(first - reach, 0);
      column_to = min(first + kAftTokens + reach, row.end);
    }
  }

  __device__ bool HasRow(int t) const { return t >= row_from && t < row_to; }
  __device__ bool HasColumn(int j) const { return j >= column_from && j < column_to; }
  __device__ bool HasColumns(int j, int n) const { return j + n > column_from && j < column_to; }
  // Bit m says whether tokens first + 16 m .. + 15 see some of columns j .. j + 7.
  __device__ unsigned RowTiles(int j) const {
    if (!HasColumns(j, 8)) return 0;
    return kCausal && j > first ? row_tiles & ~0U << ((j - first) / 16) : row_tiles;
  }

  // The first position that t sees.
  __device__ int Oldest(int t) const {
    return kCausal && kPrefixes == 2 ? max((t / Block() - 1) * Block(), 0) : 0;
  }
  // Whether prefix p belongs to a block that some token of the tile sees.
  __device__ bool HoldsPrefix(int p) const {
    return !(kCausal && kPrefixes == 2) || (p == 0 ? since_even : since_odd) >= 0;
  }
  __device__ bool SeesPrefix(int t, int p) const {
    return !(kCausal && kPrefixes == 2) || (p == 0 ? since_even : since_odd) >= Oldest(t);
  }

  // The bias, 0 for any j outside the window of t.
  __device__ float Bias(int t, int j) const {
    const int ago = t - j;
    const bool inside = ago < window() && (kCausal ? ago >= 0 : -ago < window());
    return inside ? *BiasAt(t, ago) : 0.0F;
  }

  // Computes E of columns [column, column + kAftColumns) in the order of MmaTf32's operands: row
  // tile m, step of 8 columns, lane, register. When wide, rows are multiplied by exp(-lift). All
  // threads of the block must call it.
  __device__ void Weights(int column, const float* lifts, float* to) const {
    for (unsigned i = threadIdx.x; i < kAftWeights / 4; i += blockDim.x) {
      const unsigned step = i / 32 % (kAftColumns / 8);
      const unsigned m = i / 32 / (kAftColumns / 8);
      if ((RowTiles(column + 8 * static_cast<int>(step)) >> m & 1U) == 0) continue;
      const int r = static_cast<int>(16 * m + i % 32 / 4);
      const int j = column + static_cast<int>(8 * step + i % 4);
      float w[4];  // all loads come first
#pragma unroll
      for (int o = 0; o < 4; ++o) w[o] = Bias(first + r + 8 * (o % 2), j + 4 * (o / 2));
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        if (model.wide) w[o] -= lifts[r + 8 * (o % 2)];
        w[o] = Sees(first + r + 8 * (o % 2), j + 4 * (o / 2)) ? Exp(w[o]) : 0.0F;
      }
      reinterpret_cast<float4*>(to)[i] = make_float4(w[0], w[1], w[2], w[3]);
    }
  }

  // For wide biases: computes the lift of each of the tile's tokens, by whose exponential its
  // weights are divided. It is the token's largest bias, but at least 0, the bias of tokens outside
  // the window. All threads must call it; `lifts` is in shared memory.
  __device__ void Lifts(float* lifts) const {
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int r = static_cast<int>(threadIdx.x) / 32; r < kAftTokens;
         r += static_cast<int>(blockDim.x) / 32) {
      float lift = 0.0F;
      for (int j = column_from + lane; j < column_to; j += 32) {
        if (!kCausal || j <= first + r) lift = fmaxf(lift, Bias(first + r, j));
      }
#pragma unroll
      for (int bit = 1; bit < 32; bit *= 2) {
        lift = fmaxf(lift, __shfl_xor_sync(0xFFFFFFFFU, lift, bit));
      }
      if (lane == 0) lifts[r] = lift;
    }
    __syncthreads();
  }

  int first;  // position of the tile's first token
  int row_from;
  int row_to;
  unsigned row_tiles;  // bit m: tokens first + 16 m .. + 15 include tokens of the row
  int column_from;
  int column_to;
  // The first position in the prefix of even and of odd blocks; -1 if no token sees that prefix.
  int since_even = 0;
  int since_odd = 0;
  const AftModel& model;

 private:
  // The first position of block b, or -1 if the prefix has no tokens of it.
  __device__ int Since(int b) const {
    return b >= 0 && column_from > b * Block() ? b * Block() : -1;
  }
  __device__ int window() const { return static_cast<int>(model.window); }
  __device__ int Block() const { return static_cast<int>(model.prefix_block); }

  // Whether t sees j, and j is a column.
  __device__ bool Sees(int t, int j) const {
    return HasColumn(j) && (!kCausal || (j <= t && j >= Oldest(t)));
  }
  __device__ const float* BiasAt(int t, int ago) const {
    const int columns = kCausal ? window() : 2 * window() - 1;
    const int row = min(t, static_cast<int>(model.bias_rows) - 1);
    return model.bias + static_cast<int64_t>(row) * columns + window() - 1 - ago;
  }
};

}  // namespace aft::kernels::cuda
