#pragma once

#include <cfloat>
#include <cstdint>

#include "model/kernels/cuda/attention/mma.cuh"
#include "model/kernels/cuda/attention/rows.cuh"
#include "model/kernels/cuda/attention/scalar_kernel.cuh"

// Dot products of widths up to kWidth on tensor cores, in the manner of FlashAttention-2 (arXiv
// 2307.08691). A block of four warps holds 64 queries in registers, 16 per warp, and goes over the
// keys in tiles; the next tile is loaded while one is in use. A tile whose result is not finite is
// computed again by ScalarTile: a weight of 0 times NaN would let the NaN of an unseen key pass.
namespace aft::kernels::cuda {

inline constexpr int kMmaWarps = 4;
inline constexpr int kMmaThreads = 32 * kMmaWarps;
inline constexpr int kMmaQueries = 16 * kMmaWarps;

template <int kWidth>
struct MmaShared {
  using Products = WarpProducts<kWidth>;
  static constexpr int kBufferFloats =
      Products::kKeys * (Products::kKeyStride + Products::kValueStride);

  __host__ __device__ explicit MmaShared(SharedLayout& shared)
      : buffers(shared.Take<float>(
            2 * kBufferFloats > ScalarShared::kFloats ? 2 * kBufferFloats : ScalarShared::kFloats)),
        queries(shared.Take<float>(kMmaWarps * Products::kQueryFloats)),
        first(shared.Take<float>(2 * kWidth)),
        bias(shared.Take<float>(2 * Products::kKeys)),
        flags(shared.Take<float>(kMmaWarps)) {}

  float* buffers;  // two of keys and values, or ScalarTile's arrays
  float* queries;
  float* first;  // token 0's key and value
  float* bias;   // of the keys in each buffer; written when there is a mask
  float* flags;
};

template <int kWidth>
class MmaTile {
 public:
  using Products = WarpProducts<kWidth>;
  static constexpr int kKeys = Products::kKeys;

  __device__ MmaTile(const AttendArgs& args, const QueryTile& tile, int head,
                     const MmaShared<kWidth>& arrays)
      : args_(args),
        shape_(args.shape),
        tile_(tile),
        head_(head),
        vision_(args.shape, tile),
        packed_(static_cast<const float*>(args.packed.data)),
        arrays_(arrays),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_(tile.begin / kMmaQueries * kMmaQueries + warp_ * 16) {}

  // Returns false on all threads if a result is not finite.
  __device__ bool Run() {
    Products products;
    const HeadKeys keys(args_, tile_, head_);
    products.Start([&](int row, int column) { return Query(keys, first_ + row, column); },
                   arrays_.queries + warp_ * Products::kQueryFloats);
    const RangeSight sight(vision_, tile_.begin, tile_.end);
    if (sight.first_apart() && !keys.Masked(0)) {
      float* const k = arrays_.first;
      float* const v = arrays_.first + kWidth;
      for (int c = static_cast<int>(threadIdx.x); c < kWidth; c += kMmaThreads) {
        k[c] = Key(keys, 0, c);
        v[c] = Value(keys, 0, c);
      }
      __syncthreads();
      products.AddOne(k, v, keys.mask == nullptr ? 0.0F : keys.mask[0]);
    }
    const int begin = max(first_, tile_.begin);
    const int end = min(first_ + 16, tile_.end);
    const bool idle = begin >= end;
    const RangeSight warp_sight(vision_, idle ? tile_.begin : begin, idle ? tile_.end : end);

    const int last = tile_.end - 1;
    const TokenSight row_sight[2] = {
        TokenSight(vision_, min(max(first_ + products.row(0), tile_.begin), last)),
        TokenSight(vision_, min(max(first_ + products.row(1), tile_.begin), last))};
    const int to = sight.to_most;
    Load(sight.from_first, to, 0);
    CommitCopies();
    int buffer = 0;
    for (int j = sight.from_first; j < to; j += kKeys) {
      if (j + kKeys < to) Load(j + kKeys, to, 1 - buffer);
      CommitCopies();
      WaitForCopies<1>();
      __syncthreads();
      const Sight seen = idle ? Sight::kNone : warp_sight.Of(j, j + kKeys);
      if (seen != Sight::kNone) {
        products.Score(Keys(buffer));
        if (seen == Sight::kSome || args_.mask != nullptr) Hide(row_sight, j, buffer, products);
        products.Weigh();
        products.AddValues(Values(buffer));
      }
      __syncthreads();
      buffer = 1 - buffer;
    }
    const bool finite = products.Finish(
        [&](int row, int column, float a, float b) { return Write(first_ + row, column, a, b); });
    const bool all_finite = __all_sync(kWarp, finite ? 1 : 0) != 0;
    if (lane_ == 0) arrays_.flags[warp_] = all_finite ? 0.0F : 1.0F;
    __syncthreads();
    float bad = 0.0F;
    for (int w = 0; w < kMmaWarps; ++w) bad += arrays_.flags[w];
    return bad == 0.0F;
  }

 private:
  __device__ float* Keys(int buffer) const {
    return arrays_.buffers + buffer * MmaShared<kWidth>::kBufferFloats;
  }
  __device__ float* Values(int buffer) const { return Keys(buffer) + kKeys * Products::kKeyStride; }

  // Only rare tiles need these keys, so they are not kept in registers between them.
  __device__ HeadKeys RareKeys() const { return HeadKeys(args_, tile_, Opaque(head_)); }
  __device__ bool Masked(int j) const {
    return args_.mask != nullptr && args_.mask[tile_.TokenOf(j)] <= kMaskedBelow;
  }

  __device__ float Query(const HeadKeys& keys, int t, int column) const {
    if (t < tile_.begin || t >= tile_.end || column >= shape_.score_width) return 0.0F;
    const int64_t at =
        tile_.TokenOf(t) * args_.packed.stride + int64_t{head_} * shape_.score_width + column;
    return packed_[at] * keys.QueryFactor(t);
  }
  __device__ float Key(const HeadKeys& keys, int j, int column) const {
    if (column >= shape_.score_width) return 0.0F;
    if (j >= keys.stored_k) return packed_[keys.PackedKey(j) + column] * keys.KeyFactor(j);
    int step = 0;
    const float* const key = keys.StoredKey(j, &step);
    return key[int64_t{column} * step];
  }
  __device__ float Value(const HeadKeys& keys, int j, int column) const {
    if (column >= shape_.value_width) return 0.0F;
    return j < keys.stored ? keys.StoredValue(j)[column] : packed_[keys.PackedValue(j) + column];
  }

  // Loads keys and values [j0, j0 + kKeys) into shared memory, and zeros for missing ones.
  __device__ void Load(int j0, int to, int buffer) const {
    if (args_.mask != nullptr) {
      for (int i = static_cast<int>(threadIdx.x); i < kKeys; i += kMmaThreads) {
        const float mask = j0 + i < to ? args_.mask[tile_.TokenOf(j0 + i)] : 0.0F;
        arrays_.bias[buffer * kKeys + i] = mask <= kMaskedBelow ? AFT_HIDDEN : mask;
      }
    }
    if (args_.packed_in_16_bytes && j0 >= tile_.first) {
      const int64_t token = tile_.TokenOf(j0) * args_.packed.stride;
      Copy<Products::kKeyStride>(j0, to,
                                 token + shape_.key_column + int64_t{head_} * shape_.score_width,
                                 shape_.score_width, Keys(buffer));
      Copy<Products::kValueStride>(
          j0, to, token + shape_.value_column + int64_t{head_} * shape_.value_width,
          shape_.value_width, Values(buffer));
      return;
    }
    const HeadKeys keys = RareKeys();
    // Each lane takes a key, as suits the layout of stored keys, and 16 bytes of it at a time.
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * (kWidth / 4); i += kMmaThreads) {
      const int row = i % kKeys;
      const int j = j0 + row;
      const int column = i / kKeys * 4;
      const bool exists = j < to && !keys.Masked(j);
      auto k = Fill<4>(0.0F);
      auto v = Fill<4>(0.0F);
      if (exists) {
        LoadKey(keys, j, column, k);
        LoadValue(keys, j, column, v);
      }
      Store(k, Keys(buffer) + row * Products::kKeyStride + column);
      Store(v, Values(buffer) + row * Products::kValueStride + column);
    }
  }

  // Copies rows that begin at element `from` of packed.
  template <int kStride>
  __device__ void Copy(int j0, int to, int64_t from, int width, float* shared) const {
    constexpr int kPieces = kWidth / 4;  // of a row
    constexpr int kRows = kMmaThreads / kPieces;
    const int row = static_cast<int>(threadIdx.x) / kPieces;
    const int column = static_cast<int>(threadIdx.x) % kPieces * 4;
    const float* source = packed_ + (from + row * args_.packed.stride + column);
    float* shared_row = shared + row * kStride + column;
    for (int i = row; i < kKeys; i += kRows) {
      const bool exists = j0 + i < to && column < width && !Masked(j0 + i);
      CopyAsync16(shared_row, exists ? source : packed_, exists);
      source += kRows * args_.packed.stride;
      shared_row += kRows * kStride;
    }
  }

  __device__ void LoadKey(const HeadKeys& keys, int j, int column, Channels<4>& to) const {
    const bool stored = j < keys.stored_k;
    int step = 1;
    const float* const key = stored ? keys.StoredKey(j, &step) : nullptr;
    const float factor = stored ? 1.0F : keys.KeyFactor(j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = column + i;
      if (c >= shape_.score_width) continue;
      to[i] = stored ? key[int64_t{c} * step] : packed_[keys.PackedKey(j) + c] * factor;
    }
  }
  __device__ void LoadValue(const HeadKeys& keys, int j, int column, Channels<4>& to) const {
    const float* const value = j < keys.stored ? keys.StoredValue(j) : nullptr;
    if (value != nullptr && args_.state_in_16_bytes) {
      if (column < shape_.value_width) to = cuda::Load<4>(value + column);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = column + i;
      if (c >= shape_.value_width) continue;
      to[i] = value != nullptr ? value[c] : packed_[keys.PackedValue(j) + c];
    }
  }

  // Hides the scores of keys that a query does not see, and adds the mask.
  __device__ void Hide(const TokenSight (&sight)[2], int j0, int buffer, Products& products) const {
    const int j = j0 + products.column();
    // Positions are offsets from j, so that each test is against a constant.
    const int from[2] = {sight[0].from - j, sight[1].from - j};
    const int to[2] = {sight[0].to - j, sight[1].to - j};
    const int always = vision_.global ? -j : -1;
    products.ForEachScore([&](int half, int offset, float score) {
      const bool sees = (offset >= from[half] || offset == always) && offset < to[half];
      return sees ? score : AFT_HIDDEN;
    });
    if (args_.mask == nullptr) return;
    const float* const bias = arrays_.bias + buffer * kKeys + products.column();
    products.ForEachScore(
        [&](int /*half*/, int offset, float score) { return score + bias[offset]; });
  }

  // Stores two neighbouring columns. Returns false when they are not finite.
  __device__ bool Write(int t, int column, float a, float b) const {
    if (t < tile_.begin || t >= tile_.end || column >= shape_.value_width) return true;
    const int64_t to =
        tile_.TokenOf(t) * args_.y.stride + int64_t{head_} * shape_.value_width + column;
    const bool both = column + 1 < shape_.value_width;
    if (both && args_.y_in_pairs) {
      ToOut(args_.y, to, [&](auto* pair) { Store(Channels<2>{{a, b}}, pair); });
    } else {
      StoreNumber(args_.y, to, a);
      if (both) StoreNumber(args_.y, to + 1, b);
    }
    return fabsf(a) <= FLT_MAX && (!both || fabsf(b) <= FLT_MAX);
  }

  const AttendArgs& args_;
  const AttentionShape& shape_;
  const QueryTile& tile_;
  const int head_;
  const Vision vision_;
  const float* const packed_;
  const MmaShared<kWidth>& arrays_;
  const int warp_;
  const int lane_;
  const int first_;  // position of the warp's first query
};

// Grid: tiles of 64 queries; heads. The tiles that see most come first: when causal the last ones,
// and where token 0 may see everything the first.
template <int kWidth>
__global__ void __launch_bounds__(kMmaThreads, kWidth > 64 ? 2 : 3)
    AttentionMmaKernel(const AttendArgs args) {
  const int index = static_cast<int>(args.shape.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const QueryTile tile = FindTile(args, index, kMmaQueries);
  if (tile.end <= tile.begin) return;
  const int head = static_cast<int>(blockIdx.y);
  if (tile.slot < 0) {
    WriteZeros(args, tile, head, 0, kWidth);
    return;
  }
  SharedLayout layout(DynamicShared());
  const MmaShared<kWidth> shared(layout);
  if (MmaTile<kWidth>(args, tile, head, shared).Run()) {
    return;
  }
  // The tile is found again, so that nothing has to stay in registers for this case.
  const QueryTile again = FindTile(args, Opaque(index), kMmaQueries);
  const ScalarShared scalar(shared.buffers);
  ScalarTile(args, again, Opaque(head), scalar).Run<false>(0);
}

}  // namespace aft::kernels::cuda
