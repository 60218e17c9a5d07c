#pragma once

#include <cstdint>

#include "model/kernels/cuda/conv/common.cuh"

// One token of each row. A block takes whole heads of one row, so that no other block reads what it
// writes. Its threads first compute the weights exp((k - M) + w) of all tokens in the ring, once
// per head, into shared memory, while the values of the first ring rows are being loaded. Then
// thread (group, lane) sums rows group, group + groups, .. for the kVec channels of its lane.
namespace aft::kernels::cuda {

struct ConvStepArgs {
  ConvDims dims;
  StepRows rows;
  In packed;
  State state;
  int64_t k_ring;  // floats into a state
  int64_t v_ring;
  Out y;
  bool packed_aligned = false;
  bool state_aligned = false;  // the numerators; the ring's values are aligned whenever kVec > 1
  bool y_aligned = false;
  int heads = 1;  // per block
  int lanes = 1;  // a power of two
};

inline constexpr int kConvStepParts = 16;     // most threads that share a head's tokens
inline constexpr int kConvStepFlight = 8;     // ring rows that a thread has in flight
inline constexpr int kConvStepThreads = 512;  // most threads of a block

// Shared memory. Rows of numbers per head are `heads` floats apart.
struct ConvStepShared {
  __host__ __device__ ConvStepShared(SharedLayout& shared, const ConvStepArgs& args, int threads,
                                     int vec)
      : weight(shared.Take<float>(static_cast<int64_t>(args.dims.rows()) * args.heads)),
        per_head(shared.Take<float>(static_cast<int64_t>(kPerHead) * args.heads)),
        part(shared.Take<float>(static_cast<int64_t>(3) *
                                (threads > args.heads ? threads : args.heads))),
        sum(shared.Take<float>(static_cast<int64_t>(threads) * vec)) {}

  enum : int { kKey, kOldDen, kOldMax, kPrefix, kSelf, kKeep, kAdd, kDen, kPerHead };

  float* weight;    // [s - 1, heads]; first the keys
  float* per_head;  // [kPerHead, heads]
  float* part;      // [3][parts, heads]: maxima, shifts, denominators
  float* sum;       // [groups, lanes * vec]
};

// The weights of one block's heads.
template <typename Ring>
class ConvStepHeads {
 public:
  __device__ ConvStepHeads(const ConvStepArgs& args, const ConvStepShared& shared, int head,
                           int heads, const float* in, float* state, int64_t t)
      : args_(args), shared_(shared), head_(head), heads_(heads), t_(t) {
    const int rows = args.dims.rows();
    key_ = in + args.dims.keys() + head;
    den_ = state + args.dims.den() + head;
    max_ = state + args.dims.max() + head;
    ring_ = reinterpret_cast<Ring*>(state + args.k_ring) + head;
    filter_ = args.dims.filter + head;
    in_ring_ = t < rows ? static_cast<int>(t) : rows;
    place_ = rows > 0 ? static_cast<int>(t % rows) : 0;
    columns_ = 1;
    while (columns_ < heads && columns_ < static_cast<int>(blockDim.x)) columns_ *= 2;
    parts_ = static_cast<int>(blockDim.x) / columns_;
    parts_ = parts_ < kConvStepParts ? parts_ : kConvStepParts;
    first_ = static_cast<int>(threadIdx.x) % columns_;
    part_ = static_cast<int>(threadIdx.x) / columns_;
  }

  __device__ int in_ring() const { return in_ring_; }
  __device__ int place() const { return place_; }

  // Fills shared.weight and shared.per_head except kDen, and advances the heads' part of the state.
  // Ends with a barrier.
  __device__ void Weigh() {
    ReadKeys();
    __syncthreads();
    if (args_.dims.wide) {
      FindShifts();
      __syncthreads();
    }
    Exponentials();
    __syncthreads();
  }

  // Fills kDen; a barrier must follow.
  __device__ void SumDenominators() const {
    for (int i = Mine(); part_ == 0 && i < heads_; i += columns_) {
      float den = *At(ConvStepShared::kPrefix, i) * *At(ConvStepShared::kOldDen, i) +
                  *At(ConvStepShared::kSelf, i);
      for (int p = 0; p < parts_; ++p) den += *Part(2, p, i);
      *At(ConvStepShared::kDen, i) = den;
    }
  }

 private:
  // This thread's heads begin at Mine() and are columns_ apart.
  __device__ int Mine() const { return part_ < parts_ ? first_ : heads_; }
  __device__ float* At(int which, int i) const {
    return shared_.per_head + which * args_.heads + i;
  }
  __device__ float* Part(int which, int p, int i) const {
    const int most =
        static_cast<int>(blockDim.x) > args_.heads ? static_cast<int>(blockDim.x) : args_.heads;
    return shared_.part + which * most + p * (heads_ < columns_ ? columns_ : heads_) + i;
  }
  __device__ float* Weight(int r, int i) const { return shared_.weight + r * args_.heads + i; }
  // w of the token in row r of the ring.
  __device__ float Bias(int r, int i) const {
    const int newest = place_ == 0 ? args_.dims.rows() - 1 : place_ - 1;
    const int age = newest - r + 1 + (r > newest ? args_.dims.rows() : 0);
    return filter_[static_cast<int64_t>(age) * args_.dims.heads + i];
  }
  __device__ float Largest(int which, int i) const {
    float max = *Part(which, 0, i);
    for (int p = 1; p < parts_; ++p) max = fmaxf(max, *Part(which, p, i));
    return max;
  }

  __device__ void ReadKeys() {
    for (int i = Mine(); i < heads_; i += columns_) {
      const float key = Entering(key_[i], args_.dims.bf16_ring);
      const float old_max = t_ > 0 ? max_[i] : kEmptyMax;
      if (part_ == 0) {
        *At(ConvStepShared::kKey, i) = key;
        *At(ConvStepShared::kOldDen, i) = t_ > 0 ? den_[i] : 0.0F;
        *At(ConvStepShared::kOldMax, i) = old_max;
      }
      float max = fmaxf(old_max, key);
#pragma unroll 4
      for (int r = part_; r < in_ring_; r += parts_) {
        const float k = ToFloat(ring_[static_cast<int64_t>(r) * args_.dims.heads + i]);
        *Weight(r, i) = k;
        max = fmaxf(max, k);
      }
      *Part(0, part_, i) = max;
    }
  }

  __device__ void FindShifts() {
    for (int i = Mine(); i < heads_; i += columns_) {
      const float max = Largest(0, i);
      float shift = fmaxf(*At(ConvStepShared::kOldMax, i) - max,
                          *At(ConvStepShared::kKey, i) - max + filter_[i]);
      for (int r = part_; r < in_ring_; r += parts_) {
        shift = fmaxf(shift, *Weight(r, i) - max + Bias(r, i));
      }
      *Part(1, part_, i) = shift;
    }
  }

  __device__ void Exponentials() {
    for (int i = Mine(); i < heads_; i += columns_) {
      const float max = Largest(0, i);
      const float shift = args_.dims.wide ? Largest(1, i) : 0.0F;
      const float key = *At(ConvStepShared::kKey, i);
      if (part_ == 0) {
        *At(ConvStepShared::kPrefix, i) = Exp(*At(ConvStepShared::kOldMax, i) - max - shift);
        *At(ConvStepShared::kSelf, i) = Exp(key - max + filter_[i] - shift);
      }
      float retiring = key;
      float den = 0.0F;
#pragma unroll 4
      for (int r = part_; r < in_ring_; r += parts_) {
        const float k = *Weight(r, i);
        if (r == place_) retiring = k;
        const float weight = Exp(k - max + Bias(r, i) - shift);
        *Weight(r, i) = weight;
        den += weight;
      }
      *Part(2, part_, i) = den;
      if (place_ % parts_ == part_) Retire(i, key, retiring);
    }
  }

  // Moves token t - s + 1 into the prefix and puts t in its place in the ring.
  __device__ void Retire(int i, float key, float retiring) {
    const float old_max = *At(ConvStepShared::kOldMax, i);
    const float old_den = *At(ConvStepShared::kOldDen, i);
    float keep = 1.0F;
    float add = 0.0F;
    if (t_ >= args_.dims.rows()) {
      const float e = Exp(-fabsf(retiring - old_max));
      keep = retiring > old_max ? e : 1.0F;
      add = retiring > old_max ? 1.0F : e;
      max_[i] = fmaxf(old_max, retiring);
      den_[i] = old_den * keep + add;
    } else if (t_ == 0) {
      max_[i] = kEmptyMax;
      den_[i] = 0.0F;
    }
    *At(ConvStepShared::kKeep, i) = keep;
    *At(ConvStepShared::kAdd, i) = add;
    if (args_.dims.rows() > 0) {
      ring_[static_cast<int64_t>(place_) * args_.dims.heads + i] = FromFloat<Ring>(key);
    }
  }

  const ConvStepArgs& args_;
  const ConvStepShared& shared_;
  const int head_;
  const int heads_;  // of this block
  const int64_t t_;
  const float* key_;
  float* den_;
  float* max_;
  Ring* ring_;
  const float* filter_;
  int in_ring_;
  int place_;    // ring row of the token that retires, and then of the new one
  int columns_;  // neighbouring threads that take different heads; a power of two
  int parts_;
  int first_;
  int part_;
};

// Spreads a row of numbers per head over the kVec channels from `channel` (in the block) on. Where
// heads are single channels, rows are whole vectors apart.
template <int kVec>
class ConvSpread {
 public:
  __device__ ConvSpread(int channel, int width) : head_(channel / width), width_(width) {
    // The common cases, one head for all channels or one for each, need no division per channel.
    const int offset = channel - head_ * width;
    one_ = offset + kVec <= width;
    offset_ = offset;
  }

  __device__ Channels<kVec> operator()(const float* row) const {
    if (one_) return Fill<kVec>(row[head_]);
    if (width_ == 1) return Load<kVec>(row + head_);
    Channels<kVec> c;
    int head = head_;
    int offset = offset_;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      c[i] = row[head];
      if (++offset == width_) {
        offset = 0;
        ++head;
      }
    }
    return c;
  }

 private:
  int head_;
  int width_;
  int offset_;
  bool one_;
};

template <int kVec>
__device__ inline void AddProducts(const Channels<kVec>& a, const Channels<kVec>& b,
                                   Channels<kVec>& sum) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum[i] = fmaf(a[i], b[i], sum[i]);
}

template <typename Ring, typename Y, int kVec>
__global__ void __launch_bounds__(kConvStepThreads) ConvStepKernel(ConvStepArgs args) {
  const ConvDims& dims = args.dims;
  const int row = static_cast<int>(blockIdx.y);
  const int head = static_cast<int>(blockIdx.x) * args.heads;
  const int heads = min(args.heads, dims.heads - head);
  const int first = head * dims.width;
  const int channels = heads * dims.width;
  const int32_t slot = args.rows.slot[row];
  Y* const y = static_cast<Y*>(args.y.data) + row * args.y.stride + first;
  if (slot < 0) {
    for (int c = static_cast<int>(threadIdx.x); c < channels; c += static_cast<int>(blockDim.x)) {
      y[c] = FromFloat<Y>(0.0F);
    }
    return;
  }
  const float* const in = static_cast<const float*>(args.packed.data) + row * args.packed.stride;
  float* const state = args.state.base + slot * args.state.slot_stride;
  const int64_t t = args.rows.position[row];
  SharedLayout layout(DynamicShared());
  const ConvStepShared shared(layout, args, static_cast<int>(blockDim.x), kVec);
  ConvStepHeads<Ring> weights(args, shared, head, heads, in, state, t);

  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  const int groups = static_cast<int>(blockDim.x) / args.lanes;
  const int in_ring = weights.in_ring();
  Ring* const v_ring = reinterpret_cast<Ring*>(state + args.v_ring) + first;
  const auto ring_row = [&](int r, int c) {
    return v_ring + static_cast<int64_t>(r) * dims.hid + c;
  };

  RingVector<Ring, kVec> flight[kConvStepFlight];
  const auto fetch = [&](int from, int c) {
#pragma unroll
    for (int j = 0; j < kConvStepFlight; ++j) {
      const int r = from + j * groups;
      if (r < in_ring && c < channels) flight[j].Read(ring_row(r, c));
    }
  };
  fetch(group, lane * kVec);
  weights.Weigh();

  for (int from = 0; from < channels; from += args.lanes * kVec) {
    const int c = from + lane * kVec;
    const bool mine = c < channels;
    const ConvSpread<kVec> spread(c, dims.width);
    Channels<kVec> num = Fill<kVec>(0.0F);
    if (from > 0) fetch(group, c);
    for (int r0 = group; r0 < in_ring; r0 += kConvStepFlight * groups) {
      if (r0 > group) fetch(r0, c);
#pragma unroll
      for (int j = 0; j < kConvStepFlight; ++j) {
        const int r = r0 + j * groups;
        if (r < in_ring && mine) {
          AddProducts(spread(shared.weight + r * args.heads), flight[j].Get(), num);
        }
      }
    }
    Store<kVec>(num, shared.sum + static_cast<int>(threadIdx.x) * kVec);
    if (from == 0) weights.SumDenominators();
    __syncthreads();
    if (group == 0 && mine) {
      const auto per_head = [&](int which) { return spread(shared.per_head + which * args.heads); };
      for (int g = 1; g < groups; ++g) {
        const Channels<kVec> more = Load<kVec>(shared.sum + (g * args.lanes + lane) * kVec);
#pragma unroll
        for (int i = 0; i < kVec; ++i) num[i] += more[i];
      }
      Channels<kVec> v = Load<kVec>(in + dims.values() + first + c, args.packed_aligned);
#pragma unroll
      for (int i = 0; i < kVec; ++i) v[i] = Entering(v[i], dims.bf16_ring);
      float* const sums = state + first + c;
      Channels<kVec> n = Fill<kVec>(0.0F);
      if (t > 0) n = Load<kVec>(sums, args.state_aligned);
      AddProducts(per_head(ConvStepShared::kPrefix), n, num);
      AddProducts(per_head(ConvStepShared::kSelf), v, num);
      const Channels<kVec> q = Load<kVec>(in + first + c, args.packed_aligned);
      const Channels<kVec> den = per_head(ConvStepShared::kDen);
#pragma unroll
      for (int i = 0; i < kVec; ++i) num[i] = Gated(num[i], den[i], q[i]);
      Store<kVec>(num, y + c, args.y_aligned);
      if (t >= dims.rows()) {
        const Channels<kVec> old = dims.rows() > 0 ? Load<kVec>(ring_row(weights.place(), c)) : v;
        const Channels<kVec> keep = per_head(ConvStepShared::kKeep);
        const Channels<kVec> add = per_head(ConvStepShared::kAdd);
#pragma unroll
        for (int i = 0; i < kVec; ++i) n[i] = fmaf(n[i], keep[i], add[i] * old[i]);
      }
      if (t == 0 || t >= dims.rows()) Store<kVec>(n, sums, args.state_aligned);
      if (dims.rows() > 0) Store<kVec>(v, ring_row(weights.place(), c));
    }
    __syncthreads();
  }
}

}  // namespace aft::kernels::cuda
