#pragma once

#include <cstdint>

#include "model/kernels/cuda/attention/common.cuh"
#include "model/kernels/cuda/ptx.cuh"

// The products of one warp: 16 queries with tiles of keys and values in shared memory, and an
// online softmax between them. Lane l holds columns of rows l / 4 and l / 4 + 8 ("halves" 0 and 1)
// in the layout that ptx.cuh describes.
namespace aft::kernels::cuda {

// A number as the sum of two TF32 numbers, to 2^-22. A product is then three products; the product
// of the low parts is left out.
struct Split {
  uint32_t high;
  uint32_t low;
};
__device__ inline Split SplitOf(float x) {
  const uint32_t high = ToTf32(x);
  return {high, ToTf32(x - __uint_as_float(high))};
}
__device__ inline void MmaSplit(float (&c)[4], const Split (&a)[4], const Split (&b)[2]) {
  MmaTf32(c, {a[0].low, a[1].low, a[2].low, a[3].low}, {b[0].high, b[1].high});
  MmaTf32(c, {a[0].high, a[1].high, a[2].high, a[3].high}, {b[0].low, b[1].low});
  MmaTf32(c, {a[0].high, a[1].high, a[2].high, a[3].high}, {b[0].high, b[1].high});
}

// The operands of a warp's products. The terms of a product may be in any order. Here index t of a
// fragment is column (or key) 2t, and index t + 4 is 2t + 1. So neighbours are read from memory
// together, and the scores can be used as operands as they are.
template <int kWidth>
struct WarpOperands {
  static constexpr int kKeys = 32;
  static constexpr int kKeyStride = kWidth + 8;    // pairs of 16 lanes: banks 8 g + 2 t
  static constexpr int kValueStride = kWidth + 4;  // 32 lanes: banks 8 t + g

  // The fragments of the queries, [kWidth / 8, 32 lanes, 4] in shared memory. A lane reads only its
  // own. In registers they would leave no room for their split halves.
  static constexpr int kQueryFloats = kWidth * 16;
  float* q;

  __device__ float4 Fragment(int s) const {
    return reinterpret_cast<const float4*>(q)[s * 32 + static_cast<int>(threadIdx.x % 32)];
  }

  template <typename Query>
  __device__ void Start(const Query& query, float* queries) {
    q = queries;
    const int g = static_cast<int>(threadIdx.x % 32) / 4;
    const int t = static_cast<int>(threadIdx.x % 32) % 4;
#pragma unroll 1
    for (int s = 0; s < kWidth / 8; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[(s * 32 + static_cast<int>(threadIdx.x % 32)) * 4 + i] =
            query(g + i % 2 * 8, 8 * s + 2 * t + i / 2);
      }
    }
  }

  __device__ void Dot(const float* key, float (&sum)[2]) const {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int s = 0; s < kWidth / 8; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i % 2] +=
            q[(s * 32 + static_cast<int>(threadIdx.x % 32)) * 4 + i] * key[8 * s + 2 * t + i / 2];
      }
    }
  }

  __device__ void Score(const float* k, float (&score)[kKeys / 8][4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float* const row = k + lane / 4 * kKeyStride + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) score[n][i] = 0.0F;
    }
#pragma unroll
    for (int s = 0; s < kWidth / 8; ++s) {
      const float4 x = Fragment(s);
      const Split a[4] = {SplitOf(x.x), SplitOf(x.y), SplitOf(x.z), SplitOf(x.w)};
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float2 b = *reinterpret_cast<const float2*>(row + 8 * n * kKeyStride + 8 * s);
        MmaSplit(score[n], a, {SplitOf(b.x), SplitOf(b.y)});
      }
    }
  }

  __device__ static void AddValues(const float* v, const float (&weight)[kKeys / 8][4],
                                   float (&acc)[kWidth / 8][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float* const row = v + lane % 4 * 2 * kValueStride + lane / 4;
#pragma unroll
    for (int s = 0; s < kKeys / 8; ++s) {
      const float(&p)[4] = weight[s];
      const Split a[4] = {SplitOf(p[0]), SplitOf(p[2]), SplitOf(p[1]), SplitOf(p[3])};
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        const float* const b = row + 8 * s * kValueStride + 8 * n;
        MmaSplit(acc[n], a, {SplitOf(b[0]), SplitOf(b[kValueStride])});
      }
    }
  }
};

template <int kWidth>
class WarpProducts {
 public:
  using Operands = WarpOperands<kWidth>;
  static constexpr int kKeys = Operands::kKeys;
  static constexpr int kKeyStride = Operands::kKeyStride;
  static constexpr int kValueStride = Operands::kValueStride;

  static constexpr int kQueryFloats = Operands::kQueryFloats;

  // query(row, column) includes its factor. queries: this warp's kQueryFloats, 16-byte aligned.
  template <typename Query>
  __device__ void Start(const Query& query, float* queries) {
    operands_.Start(query, queries);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc_[n][i] = 0.0F;
    }
  }

  // The row of a half.
  __device__ int row(int half) const { return static_cast<int>(threadIdx.x % 32) / 4 + half * 8; }

  // Adds a first key that all queries see; k [kWidth] and v [kWidth] are in shared memory.
  __device__ void AddOne(const float* k, const float* v, float bias) {
    float score[2] = {};
    operands_.Dot(k, score);
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = QuadSum(score[h]) + bias;
      max_[h] = fmaxf(kNoMaximum, x);
      sum_[h] = t == 0 ? Exp(x - max_[h]) : 0.0F;
    }
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc_[n][i] = v[8 * n + 2 * t + i % 2];
    }
  }

  __device__ void Score(const float* k) { operands_.Score(k, score_); }

  // This lane's scores are those of keys column() + offset, offset 0, 1, 8, 9, 16, ... Sets each
  // score to change(half, offset, score).
  __device__ int column() const { return static_cast<int>(threadIdx.x % 4) * 2; }
  template <typename Change>
  __device__ void ForEachScore(const Change& change) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) score_[n][i] = change(i / 2, 8 * n + i % 2, score_[n][i]);
    }
  }

  // Turns scores into weights.
  __device__ void Weigh() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = max_[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        top = fmaxf(top, fmaxf(score_[n][2 * h], score_[n][2 * h + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(kWarp, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kWarp, top, 2));
      const float scale = Exp(max_[h] - top);
      max_[h] = top;
      sum_[h] *= scale;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        acc_[n][2 * h] *= scale;
        acc_[n][2 * h + 1] *= scale;
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        score_[n][2 * h] = Exp(score_[n][2 * h] - top);
        score_[n][2 * h + 1] = Exp(score_[n][2 * h + 1] - top);
      }
    }
  }

  __device__ void AddValues(const float* v) {
    Operands::AddValues(v, score_, acc_);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      sum_[0] += score_[n][0] + score_[n][1];
      sum_[1] += score_[n][2] + score_[n][3];
    }
  }

  // write(row, column, y, y of the next column) returns whether the results are valid. Finish
  // returns whether all calls on this lane returned true.
  template <typename Write>
  __device__ bool Finish(const Write& write) {
    bool well = true;
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = QuadSum(sum_[h]);
      const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        well &=
            write(row(h), 8 * n + 2 * t, acc_[n][2 * h] * inverse, acc_[n][2 * h + 1] * inverse);
      }
    }
    return well;
  }

 private:
  __device__ static float QuadSum(float x) {
    x += __shfl_xor_sync(kWarp, x, 1);
    return x + __shfl_xor_sync(kWarp, x, 2);
  }

  Operands operands_;
  float max_[2] = {kNoMaximum, kNoMaximum};
  float sum_[2] = {};  // this lane's part
  float acc_[kWidth / 8][4];
  float score_[kKeys / 8][4];
};

}  // namespace aft::kernels::cuda
