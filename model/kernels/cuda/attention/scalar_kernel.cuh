#pragma once

#include <cstdint>

#include "model/kernels/cuda/attention/rows.cuh"

// Attention of a tile of queries in plain fp32, for every score and every width. A block of four
// warps takes 16 queries at a time, four per warp, and 32 keys at a time. Lanes stand for keys,
// then for columns. A key that a query does not see never affects it, not even if it is NaN.
namespace aft::kernels::cuda {

inline constexpr int kScalarWarps = 4;
inline constexpr int kScalarRows = 4;  // queries of a warp
inline constexpr int kScalarQueries = kScalarWarps * kScalarRows;
inline constexpr int kScalarGroups = 4;
inline constexpr int kScalarColumns = 32 * kScalarGroups;  // of the values

struct ScalarShared {
  __host__ __device__ explicit ScalarShared(SharedLayout& shared)
      : q(shared.Take<float>(kScalarQueries * 32)),
        k(shared.Take<float>(32 * 33)),
        v(shared.Take<float>(32 * kScalarColumns)),
        weights(shared.Take<float>(kScalarQueries * 32)) {}
  // Places the arrays in existing memory.
  __device__ explicit ScalarShared(float* memory)
      : q(memory), k(q + kScalarQueries * 32), v(k + 32 * 33), weights(v + 32 * kScalarColumns) {}
  static constexpr int kFloats = kScalarQueries * 64 + 32 * 33 + 32 * kScalarColumns;

  float* q;        // [16, 32]: 32 columns of the queries
  float* k;        // [32, 33]: the same columns, each of 32 keys
  float* v;        // [32, kScalarColumns]
  float* weights;  // [16, 32]
};

class ScalarTile {
 public:
  __device__ ScalarTile(const AttendArgs& args, const QueryTile& tile, int head,
                        const ScalarShared& shared)
      : args_(args),
        shape_(args.shape),
        tile_(tile),
        head_(head),
        keys_(args, tile, head),
        vision_(args.shape, tile),
        packed_(static_cast<const float*>(args.packed.data)),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // Computes the columns of values from first_column on. All threads of the block must call it.
  template <bool kAdditive>
  __device__ void Run(int first_column) {
    for (int t = tile_.begin; t < tile_.end; t += kScalarQueries) {
      Attend<kAdditive>(t, min(t + kScalarQueries, tile_.end), first_column);
    }
  }

 private:
  // The keys that each of the warp's queries sees, as in TokenSight.
  struct Sights {
    int from[kScalarRows];
    int to[kScalarRows];
  };
  struct Sums {
    float max[kScalarRows];
    float sum[kScalarRows];
    float acc[kScalarRows][kScalarGroups];
  };

  template <bool kAdditive>
  __device__ void Attend(int t0, int t1, int first_column) {
    Sums sums;
#pragma unroll
    for (int r = 0; r < kScalarRows; ++r) {
      sums.max[r] = kNoMaximum;
      sums.sum[r] = 0.0F;
#pragma unroll
      for (int g = 0; g < kScalarGroups; ++g) sums.acc[r][g] = 0.0F;
    }
    const RangeSight sight(vision_, t0, t1);
    Sights sights = {};
#pragma unroll
    for (int r = 0; r < kScalarRows; ++r) {
      const TokenSight token(vision_, min(t0 + warp_ * kScalarRows + r, t1 - 1));
      sights.from[r] = token.from;
      sights.to[r] = token.to;
    }
    if (sight.first_apart()) AddKeys<kAdditive>(t0, t1, 0, 1, first_column, sights, sums);
    for (int j = sight.from_first; j < sight.to_most; j += 32) {
      AddKeys<kAdditive>(t0, t1, j, min(j + 32, sight.to_most), first_column, sights, sums);
    }
#pragma unroll
    for (int r = 0; r < kScalarRows; ++r) {
      const float sum = WarpSum(sums.sum[r]);
      const int t = t0 + warp_ * kScalarRows + r;
      if (t >= t1) continue;
      const int64_t to = tile_.TokenOf(t) * args_.y.stride + head_ * shape_.value_width;
#pragma unroll
      for (int g = 0; g < kScalarGroups; ++g) {
        const int column = first_column + lane_ + 32 * g;
        if (column >= shape_.value_width) continue;
        StoreNumber(args_.y, to + column, sum == 0.0F ? 0.0F : sums.acc[r][g] / sum);
      }
    }
  }

  // Adds keys [j0, j1), at most 32.
  template <bool kAdditive>
  __device__ void AddKeys(int t0, int t1, int j0, int j1, int first_column, const Sights& sights,
                          Sums& sums) {
    float score[kScalarRows] = {};
    for (int c0 = 0; c0 < shape_.score_width; c0 += 32) {
      StageQueries(t0, t1, c0);
      StageKeys(j0, j1, c0);
      __syncthreads();
      const int columns = min(32, shape_.score_width - c0);
      for (int c = 0; c < columns; ++c) {
        const float k = shared_.k[c * 33 + lane_];
#pragma unroll
        for (int r = 0; r < kScalarRows; ++r) {
          const float q = shared_.q[(warp_ * kScalarRows + r) * 32 + c];
          if (kAdditive) {
            score[r] +=
                shape_.score_weight[int64_t{head_} * shape_.score_width + c0 + c] * Tanh(q + k);
          } else {
            score[r] += q * k;
          }
        }
      }
      __syncthreads();
    }
    Weigh(sights, j0 + lane_, j1, score, sums);
    StageValues(j0, j1, first_column);
    __syncthreads();
    for (int j = 0; j < j1 - j0; ++j) {
      float v[kScalarGroups];
#pragma unroll
      for (int g = 0; g < kScalarGroups; ++g) {
        v[g] = shared_.v[j * kScalarColumns + lane_ + 32 * g];
      }
#pragma unroll
      for (int r = 0; r < kScalarRows; ++r) {
        const float p = shared_.weights[(warp_ * kScalarRows + r) * 32 + j];
        if (p == 0.0F) continue;  // not seen: v may be NaN
#pragma unroll
        for (int g = 0; g < kScalarGroups; ++g) sums.acc[r][g] += p * v[g];
      }
    }
    __syncthreads();
  }

  // Turns the scores of key j into weights.
  __device__ void Weigh(const Sights& sights, int j, int j1, const float (&score)[kScalarRows],
                        Sums& sums) {
    const bool exists = j < j1 && !keys_.Masked(j);
    const float bias = exists && keys_.mask != nullptr ? keys_.mask[j] : 0.0F;
#pragma unroll
    for (int r = 0; r < kScalarRows; ++r) {
      const bool sees = (j >= sights.from[r] || (j == 0 && vision_.global)) && j < sights.to[r];
      const float s = exists && sees ? score[r] + bias : AFT_HIDDEN;
      float top = fmaxf(sums.max[r], s);
#pragma unroll
      for (int bit = 16; bit > 0; bit /= 2) top = fmaxf(top, __shfl_xor_sync(kWarp, top, bit));
      const float scale = Exp(sums.max[r] - top);
      const float p = Exp(s - top);
      sums.max[r] = top;
      sums.sum[r] = sums.sum[r] * scale + p;
#pragma unroll
      for (int g = 0; g < kScalarGroups; ++g) sums.acc[r][g] *= scale;
      shared_.weights[(warp_ * kScalarRows + r) * 32 + lane_] = p;
    }
  }

  __device__ void StageQueries(int t0, int t1, int c0) const {
    const int c = c0 + lane_;
    for (int r = warp_; r < kScalarQueries; r += kScalarWarps) {
      const int t = t0 + r;
      float x = 0.0F;
      if (t < t1 && c < shape_.score_width) {
        const int64_t at =
            tile_.TokenOf(t) * args_.packed.stride + int64_t{head_} * shape_.score_width + c;
        x = packed_[at] * keys_.QueryFactor(t);
      }
      shared_.q[r * 32 + lane_] = x;
    }
  }

  __device__ void StageKeys(int j0, int j1, int c0) const {
    for (int i = warp_; i < 32; i += kScalarWarps) {
      const int j = j0 + i;  // lanes are columns
      const int c = c0 + lane_;
      if (j < keys_.stored_k) continue;
      float x = 0.0F;
      if (j < j1 && c < shape_.score_width && !keys_.Masked(j)) {
        x = packed_[keys_.PackedKey(j) + c] * keys_.KeyFactor(j);
      }
      shared_.k[lane_ * 33 + i] = x;
    }
    const int j = j0 + lane_;  // lanes are keys
    if (j0 >= keys_.stored_k || j >= keys_.stored_k) return;
    const bool exists = j < j1 && !keys_.Masked(j);
    int step = 0;
    const float* const key = exists ? keys_.StoredKey(j, &step) : nullptr;
    for (int i = warp_; i < 32; i += kScalarWarps) {
      const int c = c0 + i;
      shared_.k[i * 33 + lane_] = exists && c < shape_.score_width ? key[int64_t{c} * step] : 0.0F;
    }
  }

  __device__ void StageValues(int j0, int j1, int first_column) const {
    for (int i = warp_; i < 32; i += kScalarWarps) {
      const int j = j0 + i;
      const bool exists = j < j1 && !keys_.Masked(j);
      const float* const from = exists && j < keys_.stored ? keys_.StoredValue(j) : nullptr;
      for (int g = 0; g < kScalarGroups; ++g) {
        const int c = first_column + lane_ + 32 * g;
        float x = 0.0F;
        if (exists && c < shape_.value_width) {
          x = from != nullptr ? from[c] : packed_[keys_.PackedValue(j) + c];
        }
        shared_.v[i * kScalarColumns + lane_ + 32 * g] = x;
      }
    }
  }

  const AttendArgs& args_;
  const AttentionShape& shape_;
  const QueryTile& tile_;
  const int head_;
  const HeadKeys keys_;
  const Vision vision_;
  const float* const packed_;
  const ScalarShared& shared_;
  const int warp_;
  const int lane_;
};

// Stores zeros for the columns of a padding row's tile.
__device__ inline void WriteZeros(const AttendArgs& args, const QueryTile& tile, int head,
                                  int first_column, int columns) {
  const int end = min(args.shape.value_width, first_column + columns);
  for (int t = tile.begin; t < tile.end; ++t) {
    const int64_t to = tile.TokenOf(t) * args.y.stride + head * args.shape.value_width;
    for (int c = first_column + static_cast<int>(threadIdx.x); c < end;
         c += static_cast<int>(blockDim.x)) {
      StoreNumber(args.y, to + c, 0.0F);
    }
  }
}

// Grid: tiles of 16 queries; heads times chunks of kScalarColumns.
template <bool kAdditive>
__global__ void __launch_bounds__(kScalarWarps * 32, 3)
    AttentionScalarKernel(const AttendArgs args) {
  const QueryTile tile = FindTile(args, blockIdx.x, kScalarQueries);
  if (tile.end <= tile.begin) return;
  const int head = static_cast<int>(blockIdx.y % static_cast<unsigned>(args.shape.heads));
  const int first_column =
      static_cast<int>(blockIdx.y / static_cast<unsigned>(args.shape.heads)) * kScalarColumns;
  if (tile.slot < 0) {
    WriteZeros(args, tile, head, first_column, kScalarColumns);
    return;
  }
  SharedLayout layout(DynamicShared());
  const ScalarShared shared(layout);
  ScalarTile(args, tile, head, shared).Run<kAdditive>(first_column);
}

}  // namespace aft::kernels::cuda
