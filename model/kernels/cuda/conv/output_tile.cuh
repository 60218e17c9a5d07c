#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "model/kernels/cuda/conv/tiles.cuh"

// Outputs of a tile on tensor cores: A [tile's tokens, tokens in reach] V. A is never stored: a
// thread computes the fragments that it needs, once for all channels. With a = the largest key,
//
//   A[t][t'] = exp(k_t' - a + lift) * exp(w(t, t'))      one product of two table entries
//
// If that form is not accurate (ConvLift), A is computed exactly. With M_t the largest key that t
// sees and X_t the largest exponent,
//
//   A[t][t'] = exp((k_t' - M_t) + w(t, t') - X_t)
namespace aft::kernels::cuda {

inline constexpr int kConvOutputThreads = 128;  // 4 warps of 16 tokens each
inline constexpr int kConvColumns = 32;         // tokens in reach whose values are held at once

template <int kChannels, bool kGrid>
struct ConvOutputShared {
  // Rows of values are at a distance that puts the lanes of a fragment into 32 different banks.
  static constexpr int kStride = kChannels + 8;

  __host__ __device__ ConvOutputShared(SharedLayout& shared, const ConvTileArgs& args)
      : bias(shared.Take<float>(Entries(args))),
        key(shared.Take<float>(Columns(args))),
        value(shared.Take<float>(kConvColumns * kStride)),
        row(shared.Take<int>(kGrid ? kConvColumns : 0)),
        column(shared.Take<int>(kGrid ? kConvColumns : 0)),
        max(shared.Take<float>(kConvTokens)),
        shift(shared.Take<float>(kConvTokens)),
        warp(shared.Take<float>(3 * kConvOutputThreads / 32)),
        spoilt(shared.Take<int>(kChannels)) {}

  // The largest number of tokens in reach, in whole chunks.
  __host__ __device__ static int64_t Columns(const ConvTileArgs& args) {
    int64_t columns = kConvTokens + args.dims.rows();
    if (kGrid) {
      const int64_t image_rows = (kConvTokens + args.grid_width - 2) / args.grid_width + 1;
      columns = (image_rows + args.dims.rows()) * args.grid_width;
    }
    return (columns + kConvColumns - 1) / kConvColumns * kConvColumns;
  }
  // The number of biases. In 1-D there is one per distance, from that of the last token and the
  // earliest column to that of the first token and the latest column. In 2-D there is one per tap,
  // and one for everything outside the filter.
  __host__ __device__ static int64_t Entries(const ConvTileArgs& args) {
    if (kGrid) return static_cast<int64_t>(args.dims.taps) * args.dims.taps + 1;
    return Columns(args) + kConvTokens;
  }

  float* bias;   // exp(w), when exact w; 0 (when exact -inf) for what a token does not see
  float* key;    // [columns]: exp(k - a + lift), when exact k; then 0 (when exact -inf)
  float* value;  // [kConvColumns, kStride]
  int* row;      // [kConvColumns]: row in the image of each column's token
  int* column;
  float* max;  // when exact: M and X of the tile's tokens
  float* shift;
  float* warp;
  int* spoilt;  // per channel: columns from the first value that is not finite to the end, or 0
};

// One block's tile and channels, of one head.
template <int kChannels, bool kGrid>
class ConvOutputTile {
 public:
  using Shared = ConvOutputShared<kChannels, kGrid>;
  static constexpr int kVec = 4;  // numbers that are read at a time
  static constexpr int kVectors = kChannels / kVec;
  static constexpr int kFlight = kConvColumns * kVectors / kConvOutputThreads;
  using Flight = RingVector<float, kVec>[kFlight];
  static_assert(kFlight * kConvOutputThreads == kConvColumns * kVectors);

  __device__ ConvOutputTile(const ConvTileArgs& args, const ConvSequence& sequence, int64_t i,
                            int head, int channel, int channels, const Shared& shared)
      : args_(args),
        tokens_(args, sequence),
        shared_(shared),
        head_(head),
        channel_(channel),
        channels_(channels),
        first_(sequence.First(i)),
        left_(sequence.Left(i)),
        rows_(static_cast<int>(sequence.Last(i) - first_)),
        before_(static_cast<int>(first_ - left_)),
        columns_(static_cast<int>(sequence.Right(i) - left_)) {}

  __device__ int rows() const { return rows_; }
  __device__ int columns() const { return columns_; }
  __device__ const ConvTokens& tokens() const { return tokens_; }
  __device__ int64_t first() const { return first_; }
  __device__ bool exact() const { return exact_; }
  // The number of columns that token `row` of the tile sees.
  __device__ int Seen(int row) const {
    return args_.causal ? min(columns_, row + before_ + 1) : columns_;
  }

  // Chooses the form and fills all shared memory except the values. `outside` is the largest key
  // beyond reach. Ends with a barrier.
  __device__ void Prepare(float outside) {
    ReadKeys(outside);
    FillBias();
    if (exact_) {
      __syncthreads();
      FindMaxima(outside);
    }
    __syncthreads();
  }

  // The weight of the sums beyond reach whose maximum is `max`.
  __device__ float OutsideWeight(int row, float max) const {
    return exact_ ? Exp(max - shared_.max[row] - shared_.shift[row]) : Exp(max - anchor_ + lift_);
  }

  // Fetch starts to load the values of columns [u0, u0 + kConvColumns). StoreValues stores them,
  // and zeros after the last column.
  __device__ void Fetch(int u0, Flight& flight) const {
    if (!Direct(u0)) return;
    EachVector(u0, [&](int j, int u, int c) {
      if (u < columns_ && c < channels_) {
        tokens_.Read<kVec>(left_ + u, channel_ + c, flight[j]);
      }
    });
  }
  __device__ void StoreValues(int u0, const Flight& flight) const {
    if (Direct(u0)) {
      EachVector(u0, [&](int j, int u, int c) {
        Channels<kVec> v = Fill<kVec>(0.0F);
        if (u < columns_ && c < channels_) {
          v = tokens_.Get<kVec>(flight[j], left_ + u);
#pragma unroll
          for (int i = 0; i < kVec; ++i) v[i] = Finite(v[i], u, c + i);
        }
        Store<kVec>(v, shared_.value + (u - u0) * Shared::kStride + c);
      });
    } else {
#pragma unroll 1
      for (int at = static_cast<int>(threadIdx.x); at < kConvColumns * kChannels;
           at += kConvOutputThreads) {
        const int u = u0 + at / kChannels;
        const int c = at % kChannels;
        float v = 0.0F;
        if (u < columns_ && c < channels_) {
          v = Finite(tokens_.Value<1>(left_ + u, channel_ + c)[0], u, c);
        }
        shared_.value[(u - u0) * Shared::kStride + c] = v;
      }
    }
    if constexpr (kGrid) {
      const int u = static_cast<int>(threadIdx.x);
      if (u >= kConvColumns) return;
      shared_.row[u] = static_cast<int>((left_ + u0 + u) / args_.grid_width);
      shared_.column[u] = static_cast<int>((left_ + u0 + u) % args_.grid_width);
    }
  }

  // One token of the tile with the data that Weight needs.
  struct Row {
    int index;  // in the tile
    int y;      // in the image
    int x;
    float max;
    float shift;
  };
  __device__ Row GetRow(int row) const {
    Row r = {row, 0, 0, 0.0F, 0.0F};
    if constexpr (kGrid) {
      r.y = static_cast<int>((first_ + row) / args_.grid_width);
      r.x = static_cast<int>((first_ + row) % args_.grid_width);
    }
    if (exact_) {
      r.max = shared_.max[row];
      r.shift = shared_.shift[row];
    }
    return r;
  }
  template <bool kExact>
  __device__ float Weight(const Row& row, int u0, int u) const {
    float bias = 0.0F;
    if constexpr (kGrid) {
      bias = shared_.bias[Tap(shared_.row[u] - row.y, shared_.column[u] - row.x)];
    } else {
      bias = shared_.bias[u0 + u - row.index + kConvTokens - 1];
    }
    if constexpr (!kExact) return bias * shared_.key[u0 + u];
    return bias == -INFINITY ? 0.0F : Exp(shared_.key[u0 + u] - row.max + bias - row.shift);
  }

 private:
  static constexpr int kWarps = kConvOutputThreads / 32;

  __device__ static float WarpMax(float x) {
    for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, by));
    return x;
  }

  __device__ bool Direct(int u0) const {
    return channels_ % kVec == 0 && tokens_.Direct<kVec>(left_ + u0);
  }
  // Zero times NaN is NaN, so even values that a token does not see must be finite.
  __device__ float Finite(float v, int u, int c) const {
    if (fabsf(v) <= FLT_MAX) return v;
    atomicMax(&shared_.spoilt[c], columns_ - u);
    return 0.0F;
  }
  // Calls fn(j, column, channel) for this thread's vectors j of a chunk.
  template <class Fn>
  __device__ void EachVector(int u0, const Fn& fn) const {
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      const int at = j * kConvOutputThreads + static_cast<int>(threadIdx.x);
      fn(j, u0 + at / kVectors, at % kVectors * kVec);
    }
  }

  __device__ int Tap(int dy, int dx) const {
    const int y = dy + args_.reach();
    const int x = dx + args_.reach();
    const int taps = args_.dims.taps;
    const bool within = y >= 0 && y < taps && x >= 0 && x < taps;
    return within ? y * taps + x : taps * taps;
  }
  // The index of a bias, computed from positions, which is slow.
  __device__ int BiasAt(int row, int u) const {
    if constexpr (!kGrid) return u - row + kConvTokens - 1;
    const int64_t width = args_.grid_width;
    return Tap(static_cast<int>((left_ + u) / width - (first_ + row) / width),
               static_cast<int>((left_ + u) % width - (first_ + row) % width));
  }

  // Also finds the largest key, and by how much it exceeds the largest that the first token sees.
  __device__ void ReadKeys(float outside) {
    const int chunks = (columns_ + kConvColumns - 1) / kConvColumns;
    float all = outside;
    float early = outside;
    float strange = 0.0F;
    for (int u = static_cast<int>(threadIdx.x); u < chunks * kConvColumns;
         u += kConvOutputThreads) {
      float k = -INFINITY;
      if (u < columns_) {
        k = tokens_.Key(left_ + u, head_);
        all = fmaxf(all, k);
        if (u < Seen(0)) early = fmaxf(early, k);
        if (k != k) strange = 1.0F;
      }
      shared_.key[u] = k;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    all = WarpMax(all);
    early = WarpMax(early);
    strange = WarpMax(strange);
    if (threadIdx.x % 32 == 0) {
      shared_.warp[warp] = all;
      shared_.warp[kWarps + warp] = early;
      shared_.warp[2 * kWarps + warp] = strange;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      all = fmaxf(all, shared_.warp[w]);
      early = fmaxf(early, shared_.warp[kWarps + w]);
      strange = fmaxf(strange, shared_.warp[2 * kWarps + w]);
    }
    anchor_ = all;
    lift_ = ConvLift(all - early);
    exact_ = args_.dims.wide || strange > 0.0F || !(all - early <= kConvRise);
    if (exact_) return;
    for (int u = static_cast<int>(threadIdx.x); u < chunks * kConvColumns;
         u += kConvOutputThreads) {
      shared_.key[u] = Exp(shared_.key[u] - anchor_ + lift_);
    }
  }

  __device__ void FillBias() const {
    const ConvDims& dims = args_.dims;
    const auto entry = [&](bool tap, int j) {
      const float w = tap ? dims.filter[static_cast<int64_t>(j) * dims.heads + head_] : 0.0F;
      return exact_ ? w : Exp(w);
    };
    const auto entries = static_cast<int>(Shared::Entries(args_));
    for (int at = static_cast<int>(threadIdx.x); at < entries; at += kConvOutputThreads) {
      if constexpr (kGrid) {
        shared_.bias[at] = entry(at + 1 < entries, at);
      } else {
        const int distance = at - (kConvTokens - 1) - before_;  // key's position minus query's
        if (args_.causal) {
          const bool unseen = distance > 0;
          shared_.bias[at] =
              unseen ? (exact_ ? -INFINITY : 0.0F) : entry(-distance < dims.taps, -distance);
        } else {
          const int j = distance + args_.reach();
          shared_.bias[at] = entry(j >= 0 && j < dims.taps, j);
        }
      }
    }
  }

  // Finds M and X. Each warp takes 16 tokens.
  __device__ void FindMaxima(float outside) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int r = warp * 16; r < warp * 16 + 16; ++r) {
      float max = outside;
      for (int u = lane; u < Seen(r); u += 32) max = fmaxf(max, shared_.key[u]);
      max = WarpMax(max);
      float shift = outside - max;
      for (int u = lane; u < Seen(r); u += 32) {
        shift = fmaxf(shift, shared_.key[u] - max + shared_.bias[BiasAt(r, u)]);
      }
      shift = WarpMax(shift);
      if (lane == 0) {
        shared_.max[r] = max;
        shared_.shift[r] = shift;
      }
    }
  }

  const ConvTileArgs& args_;
  const ConvTokens tokens_;
  const Shared& shared_;
  const int head_;
  const int channel_;
  const int channels_;
  const int64_t first_;
  const int64_t left_;
  const int rows_;     // tokens of the tile
  const int before_;   // columns before its first token
  const int columns_;  // tokens in reach
  float anchor_ = 0.0F;
  float lift_ = 0.0F;
  bool exact_ = false;
};

}  // namespace aft::kernels::cuda
