#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/aft.h"
#include "model/kernels/cuda/aft/math.cuh"
#include "model/kernels/cuda/row_tiles.cuh"
#include "model/kernels/ragged_batch.h"  // kMaskedBelow

// Common code of the AFT kernels for many tokens: tiles of kAftTokens positions (row_tiles.cuh).
namespace aft::kernels::cuda {

inline constexpr int kAftTokens = 64;

// Arguments of a kernel. The workspace holds `triples` prefix sums of every channel for each tile:
// [tiles, triples, 3 (num, den, max), hid].
struct AftArgs {
  AftModel model;
  ChunkRows rows;               // or whole texts, without slots
  const float* mask = nullptr;  // of the tokens, or null
  In qkv;
  State state;         // base is null if there is no state
  int64_t k_ring = 0;  // floats from the start of a slot
  int64_t v_ring = 0;
  Out y;
  float* sums = nullptr;
  int triples = 1;
};

// The task of AftScanKernel.
enum class AftScan {
  kSums,  // blockIdx.x: tile. Stores the tile's sums in the workspace
  kTile,  // blockIdx.x: tile. Computes outputs, given the sums before the tile in the workspace
  kRow,   // blockIdx.x: row. Computes all of it, from state to state
  kGate,  // blockIdx.x: tile. Computes outputs, given the sums of the whole text in the workspace
};

__host__ __device__ inline int64_t AftTiles(int64_t rows, int64_t tokens) {
  return TilesBefore(kAftTokens, rows, tokens);
}

struct AftRow {
  __device__ AftRow(const AftArgs& args, int64_t r)
      : row(r),
        token(args.rows.offset[r]),
        slot(args.rows.slot == nullptr ? 0 : args.rows.slot[r]),
        begin(args.rows.position == nullptr ? 0 : static_cast<int>(args.rows.position[r])),
        end(begin + static_cast<int>(args.rows.offset[r + 1] - token)),
        first_tile(AftTiles(r, token)) {}

  // The place in the list of the tile of positions [i * kAftTokens, (i + 1) * kAftTokens).
  __device__ int64_t Tile(int i) const { return first_tile + i - begin / kAftTokens; }
  __device__ int FirstIndex() const { return begin / kAftTokens; }
  __device__ int EndIndex() const { return (end + kAftTokens - 1) / kAftTokens; }
  __device__ bool empty() const { return begin == end; }

  int64_t row;
  int64_t token;  // row of the matrices with the first token
  int slot;       // negative: padding
  int begin;      // positions
  int end;
  int64_t first_tile;
};

// N channels from `channel` on. Channels beyond `hid` read as other channels; without a branch many
// loads can be in flight. With kVector either all exist or none, and they are aligned.
template <int N, bool kVector>
__device__ inline Channels<N> AftRead(const float* row, int channel, int hid) {
  if constexpr (kVector) {
    return Load<N>(row + (channel < hid ? channel : 0));
  } else {
    Channels<N> c;
#pragma unroll
    for (int i = 0; i < N; ++i) c[i] = row[min(channel + i, hid - 1)];
    return c;
  }
}

// ---- Keys and values of one row's tokens in the form in which they are used: masked, rounded
class AftTokens {
 public:
  __device__ AftTokens(const AftArgs& args, const AftRow& row) : args_(args), row_(row) {}

  // Loads a token of the chunk. A token that is not `valid` gets the key -inf and the value 0, so
  // its weight is 0. `count` channels exist from `channel` on.
  template <int N, bool kVector>
  __device__ void Get(int j, bool valid, int64_t channel, int64_t count, Channels<N>& k,
                      Channels<N>& v) const {
    const float* mask = args_.mask;
    float add = 0.0F;
    if (mask != nullptr && valid) {
      add = mask[row_.token + j - row_.begin];
      valid = add > kMaskedBelow;
    }
    k = Fill<N>(-INFINITY);
    v = Fill<N>(0.0F);
    if (!valid) return;
    const float* key = Token(j) + args_.model.hid + channel;
    k = LoadExisting<N, kVector>(key, count);
    v = LoadExisting<N, kVector>(key + args_.model.hid, count);
    Round(k, v);
    if (mask != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) k[i] += add;
    }
  }

  // These load many tokens at once: first call Read for all, with tokens that are in the chunk,
  // then Enter. Channels beyond `hid` get arbitrary numbers.
  template <int N>
  struct Raw {
    Channels<N> k;
    Channels<N> v;
  };
  template <int N, bool kVector>
  __device__ Raw<N> Read(const float* key, int channel) const {
    const int hid = static_cast<int>(args_.model.hid);
    return {AftRead<N, kVector>(key, channel, hid), AftRead<N, kVector>(key + hid, channel, hid)};
  }
  __device__ const float* Key(int j) const { return Token(j) + args_.model.hid; }
  __device__ int64_t stride() const { return args_.qkv.stride; }
  __device__ bool masked() const { return args_.mask != nullptr; }
  // For a valid token in a batch without a mask.
  template <int N>
  __device__ void Enter(const Raw<N>& raw, Channels<N>& k, Channels<N>& v) const {
    k = raw.k;
    v = raw.v;
    Round(k, v);
  }
  template <int N>
  __device__ void Enter(const Raw<N>& raw, int j, bool valid, Channels<N>& k,
                        Channels<N>& v) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      k[i] = valid ? raw.k[i] : -INFINITY;
      v[i] = valid ? raw.v[i] : 0.0F;
    }
    Round(k, v);
    if (args_.mask != nullptr && valid) {
      const float add = args_.mask[row_.token + j - row_.begin];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        k[i] = add > kMaskedBelow ? k[i] + add : -INFINITY;
        v[i] = add > kMaskedBelow ? v[i] : 0.0F;
      }
    }
  }

  // Get for a token that may be in the ring.
  template <int N, bool kVector>
  __device__ void GetAny(int j, bool valid, int64_t channel, int64_t count, Channels<N>& k,
                         Channels<N>& v) const {
    if (!valid || j >= row_.begin) {
      Get<N, kVector>(j, valid, channel, count, k, v);
      return;
    }
    const float* slot = args_.state.base + row_.slot * args_.state.slot_stride;
    const int ring_row = j % (static_cast<int>(args_.model.window) - 1);
    const int64_t at = ring_row * args_.model.hid + channel;
    if (args_.model.ring == Number::kBf16) {
      k = LoadExisting<N, kVector>(reinterpret_cast<const Bf16*>(slot + args_.k_ring) + at, count);
      v = LoadExisting<N, kVector>(reinterpret_cast<const Bf16*>(slot + args_.v_ring) + at, count);
    } else {
      k = LoadExisting<N, kVector>(slot + args_.k_ring + at, count);
      v = LoadExisting<N, kVector>(slot + args_.v_ring + at, count);
    }
  }

  template <int N, bool kVector>
  __device__ Channels<N> Query(int t, int channel) const {
    return AftRead<N, kVector>(Token(t), channel, static_cast<int>(args_.model.hid));
  }

  __device__ int begin() const { return row_.begin; }
  __device__ int last() const { return row_.end - 1; }

 private:
  template <int N>
  __device__ void Round(Channels<N>& k, Channels<N>& v) const {
    if (args_.model.ring != Number::kBf16 || args_.model.window <= 1) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      k[i] = RoundTo<Bf16>(k[i]);
      v[i] = RoundTo<Bf16>(v[i]);
    }
  }
  // The query of token j.
  __device__ const float* Token(int j) const {
    return static_cast<const float*>(args_.qkv.data) +
           (row_.token + j - row_.begin) * args_.qkv.stride;
  }

  const AftArgs& args_;
  const AftRow& row_;
};

// ---- Prefix sums in memory: a slot's state or a triple of the workspace
__device__ inline Prefix LoadPrefix(const float* from, int64_t hid) {
  return {from[0], from[hid], from[2 * hid]};
}
__device__ inline void StorePrefix(const Prefix& sums, float* to, int64_t hid) {
  to[0] = sums.num;
  to[hid] = sums.den;
  to[2 * hid] = sums.max;
}

__device__ inline float* AftSums(const AftArgs& args, int64_t tile, int triple, int64_t channel) {
  return args.sums + (tile * args.triples + triple) * 3 * args.model.hid + channel;
}
__device__ inline float* AftState(const AftArgs& args, const AftRow& row, int triple,
                                  int64_t channel) {
  return args.state.base + row.slot * args.state.slot_stride + triple * 3 * args.model.hid +
         channel;
}

// The prefix of a row before its first token.
__device__ inline Prefix AftStart(const AftArgs& args, const AftRow& row, int triple,
                                  int64_t channel) {
  if (args.state.base == nullptr || row.begin == 0) return {};
  return LoadPrefix(AftState(args, row, triple, channel), args.model.hid);
}

}  // namespace aft::kernels::cuda
