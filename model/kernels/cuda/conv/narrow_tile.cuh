#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "model/kernels/cuda/conv/tiles.cuh"

// Outputs of a 1-D tile whose heads are too narrow for tensor cores, computed as a filter over
// time. A warp takes 32 channels and kConvRun tokens, so that a value read from shared memory
// serves kConvRun outputs, and filter entries move through registers. With a = a head's largest key
// in reach,
//
//   num_t = sum over t' of tap(t - t') * [exp(k_t' - a + lift) * v_t']
//
// and the denominator likewise without v, once per head. As in output_kernel.cuh, that is exact
// unless the running maximum rises by more than kConvRise within the tile or w is wide. A block
// that has such a head, or a number that is not finite, computes its outputs one by one.
namespace aft::kernels::cuda {

inline constexpr int kConvNarrowChannels = 32;  // of a block
inline constexpr int kConvRun = 8;              // tokens of a thread
inline constexpr int kConvRuns = kConvTokens / kConvRun;
inline constexpr int kConvNarrowThreads = kConvNarrowChannels * kConvRuns;

struct ConvNarrowShared {
  __host__ __device__ ConvNarrowShared(SharedLayout& shared, const ConvDims& dims)
      : heads(HeadsApart(dims)),
        key(shared.Take<float>(static_cast<int64_t>(Columns(dims) + kConvRun) * heads)),
        value(shared.Take<float>(static_cast<int64_t>(Columns(dims) + kConvRun) *
                                 kConvNarrowChannels)),
        tap(shared.Take<float>(static_cast<int64_t>(Steps(dims) + kConvRun) * heads)),
        den(shared.Take<float>(static_cast<int64_t>(kConvTokens) * heads)),
        run(shared.Take<float>(2 * kConvRuns * kConvNarrowChannels)),
        part(shared.Take<float>(2 * kConvNarrowThreads / 32 * heads)),
        anchor(shared.Take<float>(heads)),
        lift(shared.Take<float>(heads)),
        outside(shared.Take<float>(2 * heads)),
        exact(shared.Take<int>(1)) {}

  // The columns of a tile: the positions that some output weighs one by one, if they exist.
  __host__ __device__ static int Columns(const ConvDims& dims) { return kConvTokens + dims.rows(); }
  // The number of columns that a thread passes over for its run, in whole runs.
  __host__ __device__ static int Steps(const ConvDims& dims) {
    return (dims.taps + kConvRun - 1 + kConvRun - 1) / kConvRun * kConvRun;
  }
  // The distance of rows of numbers per head: a power of two, and at least the number of heads that
  // kConvNarrowChannels channels can belong to.
  __host__ __device__ static int HeadsApart(const ConvDims& dims) {
    int most = (kConvNarrowChannels + dims.width - 2) / dims.width + 1;
    most = most < kConvNarrowChannels ? most : kConvNarrowChannels;
    int apart = 1;
    while (apart < most) apart *= 2;
    return apart;
  }

  int heads;
  float* key;    // [columns, heads]: exp(k - a + lift), when exact k; then a run of zeros
  float* value;  // [columns, channels]: the same times v, when exact v; then a run of zeros
  // [steps + run, heads]: the weights of a run's columns for its last output; when exact w
  float* tap;
  float* den;      // [tokens, heads]
  float* run;      // [2][runs, channels]: OwnBefore, then OwnBehind, of each run
  float* part;     // [2][warps, heads]
  float* anchor;   // [heads]
  float* lift;     // [heads]
  float* outside;  // [2][heads]: maxima of the sums beyond reach
  int* exact;
};

// One block's tile and channels.
class ConvNarrowTile {
 public:
  __device__ ConvNarrowTile(const ConvTileArgs& args, const ConvSequence& sequence, int64_t i,
                            int channel, const ConvNarrowShared& shared)
      : args_(args),
        dims_(args.dims),
        tokens_(args, sequence),
        shared_(shared),
        place_(sequence.place + i),
        channel_(channel),
        channels_(min(kConvNarrowChannels, dims_.hid - channel)),
        head_(channel / dims_.width),
        heads_((channel + channels_ - 1) / dims_.width - head_ + 1),
        first_(sequence.First(i)),
        rows_(static_cast<int>(sequence.Last(i) - first_)),
        lead_(args.causal ? dims_.rows() : args.reach()),
        begin_(static_cast<int>(sequence.Left(i) - first_) + lead_),
        end_(static_cast<int>(sequence.Right(i) - first_) + lead_) {}

  __device__ const ConvTokens& tokens() const { return tokens_; }
  __device__ int64_t first() const { return first_; }
  __device__ int rows() const { return rows_; }
  __device__ int channels() const { return channels_; }
  // The head of channel c, both counted from the block's first one.
  __device__ int HeadOf(int c) const { return (channel_ + c) / dims_.width - head_; }

  // Fills shared memory. Returns true when outputs must be computed one by one. Ends with a
  // barrier.
  __device__ bool Prepare() const {
    if (threadIdx.x == 0) *shared_.exact = 0;
    Flight flight;
    Fetch(0, flight);
    ReadKeys();
    __syncthreads();  // it also orders the reset of *exact before other threads set it
    StoreValues(flight);
    FindAnchors();
    __syncthreads();
    const bool exact = dims_.wide || *shared_.exact != 0;
    FillTaps(exact);
    if (!exact) Weigh();
    __syncthreads();
    return exact;
  }

  // Computes sums[i] of output (run * kConvRun + i), the weighted sum of the columns' numbers
  // x[column * stride]. `before` is the sum of all columns before those of the run, `behind` the
  // sum of those after them if the output sees them.
  __device__ void Filter(int run, const float* x, int stride, const float* tap, float before,
                         float behind, float (&sums)[kConvRun]) const {
    float taps[kConvRun];
#pragma unroll
    for (int i = 0; i < kConvRun; ++i) {
      sums[i] = before + behind;
      taps[i] = 1.0F;
    }
    const int steps = ConvNarrowShared::Steps(dims_);
    x += run * kConvRun * stride;
    tap += (kConvRun - 1) * shared_.heads;
    for (int j0 = 0; j0 < steps; j0 += kConvRun) {
#pragma unroll
      for (int j = 0; j < kConvRun; ++j) {
        taps[j] = tap[(j0 + j) * shared_.heads];
        const float now = x[(j0 + j) * stride];
#pragma unroll
        for (int i = 0; i < kConvRun; ++i) {
          sums[i] = fmaf(taps[(j - i + kConvRun) % kConvRun], now, sums[i]);
        }
      }
    }
  }

  // The sum of the run's first kConvRun columns, and of the columns that this run has and the run
  // before does not.
  __device__ float OwnBefore(int run, const float* x, int stride) const {
    return Sum(x + run * kConvRun * stride, stride);
  }
  __device__ float OwnBehind(int run, const float* x, int stride) const {
    const int from = (run - 1) * kConvRun + ConvNarrowShared::Steps(dims_);
    return args_.causal ? 0.0F : Sum(x + from * stride, stride);
  }

  // Computes the denominators of all heads and tokens into shared.den.
  __device__ void SumDenominators() const {
    const int i = static_cast<int>(threadIdx.x) % shared_.heads;
    const int run = static_cast<int>(threadIdx.x) / shared_.heads;
    if (run >= kConvRuns || i >= heads_) return;
    float before = 0.0F;
    float behind = 0.0F;
    for (int r = 0; r < run; ++r) before += OwnBefore(r, shared_.key + i, shared_.heads);
    for (int r = run + 1; r < kConvRuns; ++r)
      behind += OwnBehind(r, shared_.key + i, shared_.heads);
    for (int side = 0; side < args_.sides(); ++side) {
      before =
          fmaf(OutsideWeight(side, i), args_.Carry(place_, side)[dims_.den() + head_ + i], before);
    }
    float den[kConvRun];
    Filter(run, shared_.key + i, shared_.heads, shared_.tap + i, before, behind, den);
#pragma unroll
    for (int r = 0; r < kConvRun; ++r)
      shared_.den[(run * kConvRun + r) * shared_.heads + i] = den[r];
  }

  // The sum of the tokens beyond reach, for channel c of the block.
  __device__ float Outside(int c) const {
    float sum = 0.0F;
    for (int side = 0; side < args_.sides(); ++side) {
      sum = fmaf(OutsideWeight(side, HeadOf(c)), args_.Carry(place_, side)[channel_ + c], sum);
    }
    return sum;
  }

  // Computes numerator and denominator of output `row` of channel c from the definition.
  __device__ void Exactly(int row, int c, float* num, float* den) const {
    const int i = HeadOf(c);
    const int last = args_.causal ? min(end_, row + lead_ + 1) : end_;
    const float* const keys = shared_.key + i;
    float outside = kEmptyMax;
    for (int side = 0; side < args_.sides(); ++side) {
      outside = fmaxf(outside, shared_.outside[side * shared_.heads + i]);
    }
    float max = outside;
    for (int u = begin_; u < last; ++u) max = fmaxf(max, keys[u * shared_.heads]);
    const auto exponent = [&](int u) {
      const int tap = u - row;
      const float w = tap >= 0 && tap < dims_.taps
                          ? shared_.tap[(tap + kConvRun - 1) * shared_.heads + i]
                          : 0.0F;
      return keys[u * shared_.heads] - max + w;
    };
    float shift = outside - max;
    for (int u = begin_; u < last; ++u) shift = fmaxf(shift, exponent(u));
    *num = 0.0F;
    *den = 0.0F;
    for (int side = 0; side < args_.sides(); ++side) {
      const float weight = Exp(shared_.outside[side * shared_.heads + i] - max - shift);
      const float* const carry = args_.Carry(place_, side);
      *num = fmaf(weight, carry[channel_ + c], *num);
      *den = fmaf(weight, carry[dims_.den() + head_ + i], *den);
    }
    for (int u = begin_; u < last; ++u) {
      const float weight = Exp(exponent(u) - shift);
      *num = fmaf(weight, shared_.value[u * kConvNarrowChannels + c], *num);
      *den += weight;
    }
    if (*den == 0.0F) *den = 1.0F;  // the token sees no key: the output is 0
  }

 private:
  static constexpr int kWarps = kConvNarrowThreads / 32;

  __device__ static float Sum(const float* x, int stride) {
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < kConvRun; ++j) sum += x[j * stride];
    return sum;
  }
  __device__ float OutsideWeight(int side, int i) const {
    return Exp(shared_.outside[side * shared_.heads + i] - shared_.anchor[i] + shared_.lift[i]);
  }

  __device__ void ReadKeys() const {
    const int columns = ConvNarrowShared::Columns(dims_) + kConvRun;
    const int i = static_cast<int>(threadIdx.x) % shared_.heads;
    const int parts = kConvNarrowThreads / shared_.heads;
    const int part = static_cast<int>(threadIdx.x) / shared_.heads;
    float outside = kEmptyMax;
    for (int side = 0; side < args_.sides() && i < heads_; ++side) {
      const float max = args_.Carry(place_, side)[dims_.max() + head_ + i];
      if (part == 0) shared_.outside[side * shared_.heads + i] = max;
      outside = fmaxf(outside, max);
    }
    float all = outside;
    float early = outside;
    const int64_t left = first_ - lead_;
    const bool plain = tokens_.Plain(left + begin_);
    constexpr int kKeys = 4;  // in flight together
    for (int u0 = part; u0 < columns; u0 += kKeys * parts) {
      float k[kKeys];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const int u = u0 + j * parts;
        k[j] = -INFINITY;
        if (plain && i < heads_ && u >= begin_ && u < end_) {
          k[j] = tokens_.PlainKey(left + u, head_ + i);
        }
      }
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const int u = u0 + j * parts;
        if (u >= columns) continue;
        if (i < heads_ && u >= begin_ && u < end_) {
          if (!plain) k[j] = tokens_.Key(left + u, head_ + i);
          all = k[j] != k[j] ? INFINITY : fmaxf(all, k[j]);  // NaN selects the exact form
          if (!args_.causal || u <= lead_) early = fmaxf(early, k[j]);
        }
        shared_.key[u * shared_.heads + i] = k[j];
      }
    }
    for (int by = 16; by >= shared_.heads; by /= 2) {
      all = fmaxf(all, __shfl_xor_sync(0xFFFFFFFFU, all, by));
      early = fmaxf(early, __shfl_xor_sync(0xFFFFFFFFU, early, by));
    }
    if (static_cast<int>(threadIdx.x) % 32 >= shared_.heads) return;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    shared_.part[warp * shared_.heads + i] = all;
    shared_.part[(kWarps + warp) * shared_.heads + i] = early;
  }

  __device__ void FindAnchors() const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= heads_) return;
    float all = kEmptyMax;
    float early = kEmptyMax;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      all = fmaxf(all, shared_.part[warp * shared_.heads + i]);
      early = fmaxf(early, shared_.part[(kWarps + warp) * shared_.heads + i]);
    }
    shared_.anchor[i] = all;
    shared_.lift[i] = ConvLift(all - early);
    if (!(all - early <= kConvRise)) atomicMax(shared_.exact, 1);
  }

  static constexpr int kVec = 4;  // numbers that are read at a time
  static constexpr int kVectors = kConvNarrowChannels / kVec;
  static constexpr int kFlight = 4;
  using Flight = RingVector<float, kVec>[kFlight];

  __device__ bool Direct() const {
    return channels_ % kVec == 0 && tokens_.Direct<kVec>(first_ - lead_ + begin_);
  }
  // Calls fn(j, column, channel) for this thread's vectors j, if their column and channel exist, in
  // the batch that starts at vector `from` of the block.
  template <class Fn>
  __device__ void EachVector(int from, const Fn& fn) const {
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      const int at = from + j * kConvNarrowThreads + static_cast<int>(threadIdx.x);
      const int u = at / kVectors;
      const int c = at % kVectors * kVec;
      if (u >= begin_ && u < end_ && c < channels_) fn(j, u, c);
    }
  }
  __device__ void Fetch(int from, Flight& flight) const {
    if (!Direct()) return;
    EachVector(from, [&](int j, int u, int c) {
      tokens_.Read<kVec>(first_ - lead_ + u, channel_ + c, flight[j]);
    });
  }
  // `flight` holds the vectors that Fetch(0) loaded.
  __device__ void StoreValues(Flight& flight) const {
    const int columns = ConvNarrowShared::Columns(dims_) + kConvRun;
    const auto store = [&](int u, int c, const auto& v) {
      bool finite = true;
#pragma unroll
      for (float x : v.x) finite = finite && fabsf(x) <= FLT_MAX;
      if (!finite) atomicMax(shared_.exact, 1);
      Store(v, shared_.value + u * kConvNarrowChannels + c);
    };
    for (int at = static_cast<int>(threadIdx.x); at < columns * kConvNarrowChannels;
         at += kConvNarrowThreads) {
      const int u = at / kConvNarrowChannels;
      const int c = at % kConvNarrowChannels;
      if (u < begin_ || u >= end_ || c >= channels_) {
        shared_.value[at] = 0.0F;
      } else if (!Direct()) {
        store(u, c, tokens_.Value<1>(first_ - lead_ + u, channel_ + c));
      }
    }
    if (!Direct()) return;
    for (int from = 0; from < columns * kVectors; from += kFlight * kConvNarrowThreads) {
      if (from > 0) Fetch(from, flight);
      EachVector(from, [&](int j, int u, int c) {
        store(u, c, tokens_.Get<kVec>(flight[j], first_ - lead_ + u));
      });
    }
  }

  __device__ void FillTaps(bool exact) const {
    const int i = static_cast<int>(threadIdx.x) % shared_.heads;
    const int entries = ConvNarrowShared::Steps(dims_) + kConvRun;
    for (int at = static_cast<int>(threadIdx.x) / shared_.heads; at < entries && i < heads_;
         at += kConvNarrowThreads / shared_.heads) {
      // Columns before the first tap have weight 1. So do those after the last tap, unless the
      // token does not see them.
      const int tap = at - (kConvRun - 1);
      float weight = tap < 0 || !args_.causal ? 1.0F : 0.0F;
      if (tap >= 0 && tap < dims_.taps) {
        const int64_t row = args_.causal ? dims_.taps - 1 - tap : tap;
        const float w = dims_.filter[row * dims_.heads + head_ + i];
        weight = exact ? w : Exp(w);
      }
      shared_.tap[at * shared_.heads + i] = weight;
    }
  }

  __device__ void Weigh() const {
    const int columns = ConvNarrowShared::Columns(dims_) + kConvRun;
    for (int at = static_cast<int>(threadIdx.x); at < columns * shared_.heads;
         at += kConvNarrowThreads) {
      const int i = at % shared_.heads;
      if (i >= heads_) continue;
      shared_.key[at] = Exp(shared_.key[at] - shared_.anchor[i] + shared_.lift[i]);
    }
    __syncthreads();
    const int c = static_cast<int>(threadIdx.x) % kConvNarrowChannels;
    if (c >= channels_) return;
    const int i = HeadOf(c);
    for (int u = static_cast<int>(threadIdx.x) / kConvNarrowChannels; u < columns;
         u += kConvNarrowThreads / kConvNarrowChannels) {
      shared_.value[u * kConvNarrowChannels + c] *= shared_.key[u * shared_.heads + i];
    }
  }

  const ConvTileArgs& args_;
  const ConvDims& dims_;
  const ConvTokens tokens_;
  const ConvNarrowShared& shared_;
  const int64_t place_;
  const int channel_;
  const int channels_;
  const int head_;
  const int heads_;
  const int64_t first_;
  const int rows_;   // tokens of the tile
  const int lead_;   // columns before the tile's first token, whether they exist or not
  const int begin_;  // columns that exist
  const int end_;
};

}  // namespace aft::kernels::cuda
