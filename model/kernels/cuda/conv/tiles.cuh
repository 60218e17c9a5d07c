#pragma once

#include <cstdint>

#include "model/kernels/cuda/conv/common.cuh"
#include "model/kernels/cuda/row_tiles.cuh"

// Prompts and whole texts, causal or not, as tiles of kConvTokens tokens, which are cut at
// multiples of kConvTokens in the sequence. A tile's tokens weigh those of [Left, Right) one by
// one, with the filter. All tokens before and after these are beyond the filter's reach and are
// added as sums:
//
//   ConvSumsKernel    sums of the tokens between the Left of a tile and that of the next; also
//   Right ConvCarryKernel   sums of all tokens before a tile's Left, and of all from its Right on
//   ConvOutputKernel  y; ConvNarrowKernel for narrow filters
//   ConvStoreKernel   advances the state
//
// Sums are numerators, denominators and maxima, relative to exp(max), as in a state.
namespace aft::kernels::cuda {

inline constexpr int kConvTokens = 64;

// In a tile the weights of narrow filters are exp((k - a) + lift) * exp(w), where a is the largest
// key in reach, as long as the running maximum rises by at most kConvRise within the tile. Terms
// below exp(-87) are lost. If it rises a lot, the lift makes them less than exp(30 - 87 + 2 *
// kNarrowBias) = exp(-17) of any token's sum. No weight is above exp(30 + kNarrowBias).
inline constexpr float kConvRise = 60.0F;
__device__ inline float ConvLift(float rise) { return rise > 30.0F ? 30.0F : 0.0F; }

struct ConvTileArgs {
  ConvDims dims;
  bool causal = false;
  bool grid = false;
  int64_t grid_width = 0;
  ChunkRows rows = {};          // or whole texts, without slots
  const float* mask = nullptr;  // of the tokens, or null
  In packed = {};
  State state = {};    // base is null if there is no state
  int64_t k_ring = 0;  // floats into a state
  int64_t v_ring = 0;
  Out y = {};
  float* sums = nullptr;   // [places, sides(), dims.sums()]
  float* carry = nullptr;  // [places, sides(), dims.sums()]

  // Whether vectors of 16 bytes of packed, and of as many numbers elsewhere, are aligned.
  bool packed_aligned = false;
  bool ring_aligned = false;
  bool y_aligned = false;

  __host__ __device__ int sides() const { return causal ? 1 : 2; }
  __host__ __device__ int reach() const { return (dims.taps - 1) / 2; }
  __device__ float* Sums(int64_t place, int side) const {
    return sums + (place * sides() + side) * dims.sums();
  }
  __device__ float* Carry(int64_t place, int side) const {
    return carry + (place * sides() + side) * dims.sums();
  }
};

// A row may begin and end within a tile. Its last place holds the sums that go into the state.
inline constexpr int kConvPlaces = 3;  // places of a row in addition to those of its whole tiles
__host__ __device__ inline int64_t ConvPlaces(int64_t rows, int64_t tokens) {
  return TilesBefore(kConvTokens, rows, tokens, kConvPlaces);
}

// One row of the batch and its tiles. Positions are those in the sequence.
struct ConvSequence {
  __device__ ConvSequence(const ConvTileArgs& args, int64_t row)
      : args_(args),
        slot(args.rows.slot == nullptr ? 0 : args.rows.slot[row]),
        token(args.rows.offset[row]),
        begin(args.rows.position == nullptr ? 0 : args.rows.position[row]),
        end(begin + args.rows.offset[row + 1] - token),
        place(ConvPlaces(row, token)),
        tiles(end == begin ? 0 : (end - 1) / kConvTokens - begin / kConvTokens + 1) {}

  // [First, Last) are the tokens of the row's tile i, which weigh [Left, Right) one by one.
  __device__ int64_t First(int64_t i) const {
    return min(end, max(begin, (begin / kConvTokens + i) * kConvTokens));
  }
  __device__ int64_t Last(int64_t i) const { return First(i + 1); }
  __device__ int64_t Left(int64_t i) const {
    const int64_t zero = 0;
    if (args_.causal) return max(zero, First(i) - args_.dims.rows());
    if (!args_.grid) return max(zero, First(i) - args_.reach());
    return max(zero, First(i) / args_.grid_width - args_.reach()) * args_.grid_width;
  }
  __device__ int64_t Right(int64_t i) const {
    if (args_.causal) return Last(i);
    if (!args_.grid) return min(end, Last(i) + args_.reach());
    return min(end, ((Last(i) - 1) / args_.grid_width + args_.reach() + 1) * args_.grid_width);
  }

 private:
  const ConvTileArgs& args_;

 public:
  const int32_t slot;
  const int64_t token;  // row of the matrices at position `begin`
  const int64_t begin;
  const int64_t end;
  const int64_t place;  // place of tile 0 in sums and carry
  const int64_t tiles;
};

// The row that a place belongs to. All lanes of a warp must call it.
__device__ inline int64_t ConvRowOf(const ConvTileArgs& args, int64_t place) {
  return RowOfTile(args.rows, place, kConvTokens, kConvPlaces);
}

// A row's keys and values by position. They are read from packed, or before the row's first
// position from the rings.
class ConvTokens {
 public:
  __device__ ConvTokens(const ConvTileArgs& args, const ConvSequence& sequence)
      : args_(args),
        begin_(sequence.begin),
        packed_(static_cast<const float*>(args.packed.data) + sequence.token * args.packed.stride),
        mask_(args.mask == nullptr ? nullptr : args.mask + sequence.token),
        state_(args.rows.slot == nullptr
                   ? nullptr
                   : args.state.base + sequence.slot * args.state.slot_stride),
        place_(args.dims.rows() > 0 ? static_cast<int>(begin_ % args.dims.rows()) : 0) {}

  __device__ const float* Packed(int64_t t) const {
    return packed_ + (t - begin_) * args_.packed.stride;
  }

  __device__ float Key(int64_t t, int head) const {
    const ConvDims& dims = args_.dims;
    if (t < begin_) {
      const int64_t at = RingRow(t) * dims.heads + head;
      return dims.bf16_ring ? ToFloat(reinterpret_cast<const Bf16*>(state_ + args_.k_ring)[at])
                            : (state_ + args_.k_ring)[at];
    }
    if (Masked(t)) return kEmptyMax;
    const float mask = mask_ == nullptr ? 0.0F : mask_[t - begin_];
    return Entering(Packed(t)[dims.keys() + head], dims.bf16_ring) + mask;
  }

  // Whether all tokens from t on have keys in packed and no mask. Their loads have no branches and
  // can be in flight together.
  __device__ bool Plain(int64_t t) const { return t >= begin_ && mask_ == nullptr; }
  __device__ float PlainKey(int64_t t, int head) const {
    return Entering(Packed(t)[args_.dims.keys() + head], args_.dims.bf16_ring);
  }

  // N channels, or zeros where the token is masked.
  template <int N>
  __device__ Channels<N> Value(int64_t t, int channel) const {
    const ConvDims& dims = args_.dims;
    if (t < begin_) {
      const int64_t at = RingRow(t) * dims.hid + channel;
      return dims.bf16_ring ? Load<N>(reinterpret_cast<const Bf16*>(state_ + args_.v_ring) + at,
                                      args_.ring_aligned)
                            : Load<N>(state_ + args_.v_ring + at, args_.ring_aligned);
    }
    if (Masked(t)) return Fill<N>(0.0F);
    Channels<N> v = Load<N>(Packed(t) + dims.values() + channel, args_.packed_aligned);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = Entering(v[i], dims.bf16_ring);
    return v;
  }

  // Values as they are in memory, for loads that are in flight together: kVec channels of tokens
  // that are in packed, or in a ring of fp32.
  template <int kVec>
  __device__ bool Direct(int64_t t) const {
    if (kVec > 1 && !args_.packed_aligned) return false;
    return t >= begin_ || (!args_.dims.bf16_ring && (kVec == 1 || args_.ring_aligned));
  }
  template <int kVec>
  __device__ void Read(int64_t t, int channel, RingVector<float, kVec>& raw) const {
    const ConvDims& dims = args_.dims;
    raw.Read(t < begin_ ? state_ + args_.v_ring + RingRow(t) * dims.hid + channel
                        : Packed(t) + dims.values() + channel);
  }
  template <int kVec>
  __device__ Channels<kVec> Get(const RingVector<float, kVec>& raw, int64_t t) const {
    if (t >= begin_ && Masked(t)) return Fill<kVec>(0.0F);
    Channels<kVec> v = raw.Get();
#pragma unroll
    for (int i = 0; i < kVec; ++i) v[i] = Entering(v[i], args_.dims.bf16_ring);
    return v;
  }

 private:
  __device__ bool Masked(int64_t t) const {
    return mask_ != nullptr && mask_[t - begin_] <= kMaskedBelow;
  }
  // t must be one of the s - 1 positions before begin_.
  __device__ int64_t RingRow(int64_t t) const {
    const int row = place_ - static_cast<int>(begin_ - t);
    return row < 0 ? row + args_.dims.rows() : row;
  }

  const ConvTileArgs& args_;
  const int64_t begin_;
  const float* packed_;
  const float* mask_;
  const float* state_;
  const int place_;  // row of the rings that token begin_ will have
};

// Host: computes the outputs of all tiles, given the sums around them (outputs.cu).
int ConvOutputs(const ConvTileArgs& args, unsigned places, Stream stream);

}  // namespace aft::kernels::cuda
