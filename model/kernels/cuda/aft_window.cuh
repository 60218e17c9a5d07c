#ifndef AFT_MODEL_KERNELS_CUDA_AFT_WINDOW_CUH_
#define AFT_MODEL_KERNELS_CUDA_AFT_WINDOW_CUH_

#include <cstdint>

#include "model/kernels/cuda/aft_rows.cuh"

namespace aft::kernels::cuda {

inline constexpr int kAftColumns = 32;  // of E at a time
inline constexpr int kAftWeights = kAftTokens * kAftColumns;

struct AftTileShared {
  __host__ __device__ explicit AftTileShared(SharedLayout& shared)
      : weights(shared.Take<float>(2 * kAftWeights)), lifts(shared.Take<float>(kAftTokens)) {}

  float* weights;  // two buffers
  float* lifts;
};

// Which tokens the tokens of one tile see, and with what bias. A tile's columns are the tokens that
// are not in the prefixes that its first token finds: kCausal, prefixes of what has left the window
// (two: by the parity of their block); else those of the tokens before and after the columns.
template <int kPrefixes, bool kCausal>
struct AftWindow {
  __device__ AftWindow(const AftArgs& args, const AftRow& row, int index)
      : first(index * kAftTokens),
        row_from(max(row.begin, first)),
        row_to(min(row.end, first + kAftTokens)),
        window(static_cast<int>(args.model.window)),
        block(static_cast<int>(args.model.prefix_block)),
        bias(args.model.bias),
        last_bias(static_cast<int>(args.model.bias_rows) - 1),
        columns(kCausal ? window : 2 * window - 1) {
    if constexpr (kCausal) {
      column_from = max(row_from - max(window - 1, 0), 0);
      column_to = row_to;
      if constexpr (kPrefixes == 2) {
        const int own = row_from / block;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const int held = own % 2 == p ? own : own - 1;
          since[p] = held >= 0 && column_from > held * block ? held * block : -1;
        }
      }
    } else {
      const int reach = AftReach(window);
      column_from = max(first - reach, 0);
      column_to = min(first + kAftTokens + reach, row.end);
    }
  }

  // Whole tiles that the window reaches beyond a tile, in tokens, when not causal.
  __host__ __device__ static int AftReach(int window) {
    return (max(window - 1, 0) + kAftTokens - 1) / kAftTokens * kAftTokens;
  }

  __device__ bool HasRow(int t) const { return t >= row_from && t < row_to; }
  // Of tokens first + 16 m .. + 15.
  __device__ bool HasRows(int m) const {
    return first + 16 * m < row_to && first + 16 * m + 16 > row_from;
  }
  __device__ bool HasColumn(int j) const { return j >= column_from && j < column_to; }
  __device__ bool HasColumns(int j, int n) const { return j + n > column_from && j < column_to; }
  // Whether tokens first + 16 m .. + 15 see some of columns j .. j + 7.
  __device__ bool Meets(int m, int j) const {
    return HasRows(m) && HasColumns(j, 8) && (!kCausal || j < first + 16 * m + 16);
  }

  // The first position that t sees.
  __device__ int Oldest(int t) const {
    return kCausal && kPrefixes == 2 ? max((t / block - 1) * block, 0) : 0;
  }
  // Whether the prefix is that of a block that some token of the tile sees.
  __device__ bool HoldsPrefix(int p) const { return !(kCausal && kPrefixes == 2) || since[p] >= 0; }
  __device__ bool SeesPrefix(int t, int p) const {
    return !(kCausal && kPrefixes == 2) || since[p] >= Oldest(t);
  }

  __device__ float Bias(int t, int j) const {
    const int ago = t - j;
    if (ago >= window || (!kCausal && -ago >= window)) return 0.0F;
    return bias[static_cast<int64_t>(min(t, last_bias)) * columns + window - 1 - ago];
  }

  // E of columns [column, column + kAftColumns) in the order of MmaTf32's operands: row tile m,
  // step of 8 columns, lane, register. Times exp(-lift) of its row. All threads of the block.
  __device__ void Weights(int column, const float* lifts, float* to) const {
    for (int i = static_cast<int>(threadIdx.x); i < kAftWeights / 4;
         i += static_cast<int>(blockDim.x)) {
      const int step = i / 32 % (kAftColumns / 8);
      const int m = i / 32 / (kAftColumns / 8);
      if (!Meets(m, column + 8 * step)) continue;
      const int r = 16 * m + i % 32 / 4;
      const int j = column + 8 * step + i % 4;
      const float low = lifts == nullptr ? 0.0F : lifts[r];
      const float high = lifts == nullptr ? 0.0F : lifts[r + 8];
      reinterpret_cast<float4*>(to)[i] =
          make_float4(Weight(first + r, j, low), Weight(first + r + 8, j, high),
                      Weight(first + r, j + 4, low), Weight(first + r + 8, j + 4, high));
    }
  }

  // For wide biases: the largest bias of each of the tile's tokens, at least 0 (that of tokens
  // outside the window), by which its weights are divided. All threads; shared memory.
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

  int first;  // position of the tile
  int row_from;
  int row_to;
  int column_from;
  int column_to;
  int since[2] = {0, 0};  // first position in the prefix; -1: nothing that is seen

 private:
  __device__ float Weight(int t, int j, float lift) const {
    const bool sees = HasColumn(j) && (!kCausal || (j <= t && j >= Oldest(t)));
    return sees ? Exp(Bias(t, j) - lift) : 0.0F;
  }

  int window;
  int block;
  const float* bias;
  int last_bias;
  int columns;
};

}  // namespace aft::kernels::cuda

#endif  // AFT_MODEL_KERNELS_CUDA_AFT_WINDOW_CUH_
