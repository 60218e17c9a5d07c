#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/rows.cuh"

// The sums without bias that a tile's tokens see. A tile's "leaving" tokens are those that leave
// the window while the tile's tokens are the newest. Their sums are computed first, and then
// combined over the tiles before.
namespace aft::kernels::cuda {

inline constexpr int kAftWarpChannels = 16;

// The warp's first channel. A block of blockIdx.y has kAftWarpChannels channels per warp.
__device__ inline int AftWarpChannel() {
  return static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * kAftWarpChannels;
}

// A warp's share of the channels: two neighbours per lane, the same for lanes with equal lane / 4.
struct AftLane {
  __device__ AftLane(int64_t hid, int first_channel)
      : g(static_cast<int>(threadIdx.x) % 32 / 4),
        t(static_cast<int>(threadIdx.x) % 4),
        channel(first_channel + 2 * g),
        count(static_cast<int>(hid) - channel) {}

  int g;
  int t;
  int channel;
  int count;  // channels that exist from `channel` on
};

// Tokens [from, to) that enter one prefix. `resets` says that they are all that it holds
// afterwards, because the first token of a block empties the prefix of its parity.
struct AftPart {
  int from = 0;
  int to = 0;
  bool resets = false;
};

// The tokens of [from, to) that enter prefix `parity`, given blocks of `block` positions (0: one
// prefix).
__device__ inline AftPart AftPartOf(int from, int to, int block, int parity) {
  if (block == 0) return {from, to, false};
  if (from >= to) return {from, from, false};
  int b = (to - 1) / block;
  if (b % 2 != parity) --b;
  const int start = b * block;
  if (b < 0 || start + block <= from) return {from, from, false};
  return {max(from, start), min(to, start + block), start >= from};
}

// The tokens that leave the window during tile `index` of a causal row.
__device__ inline AftPart AftLeaving(const AftArgs& args, const AftRow& row, int index,
                                     int parity) {
  const int ring_rows = max(static_cast<int>(args.model.window) - 1, 0);
  const int from = max(max(row.begin, index * kAftTokens) - ring_rows, 0);
  const int to = max(min(row.end, (index + 1) * kAftTokens) - ring_rows, 0);
  return AftPartOf(from, to, static_cast<int>(args.model.prefix_block), parity);
}

// Sums of tokens [from, to) for the two channels of each lane. All lanes of a warp must call it;
// lanes with equal g get the same sums. The order of additions depends on the distance from `from`
// alone.
template <bool kVector>
__device__ inline void AftRangeSums(const AftTokens& tokens, int from, int to, const AftLane& lane,
                                    Prefix (&sums)[2]) {
  constexpr int kEach = 8;  // tokens of a lane at a time
  sums[0] = sums[1] = {};
#pragma unroll 1
  for (int first = from; first < to; first += 4 * kEach) {
    Channels<2> k[kEach];
    Channels<2> v[kEach];
    if (first < tokens.begin()) {
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const int j = first + 4 * u + lane.t;
        tokens.GetAny<2, kVector>(j, j < to, lane.channel, lane.count, k[u], v[u]);
      }
    } else {
      AftTokens::Raw<2> raw[kEach];
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const int j = first + 4 * u + lane.t;
        raw[u] = tokens.Read<2, kVector>(tokens.Key(min(j, tokens.last())), lane.channel);
      }
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const int j = first + 4 * u + lane.t;
        tokens.Enter(raw[u], j, j < to, k[u], v[u]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = kEmptyMax;
#pragma unroll
      for (int u = 0; u < kEach; ++u) largest = fmaxf(largest, k[u][i]);
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
      float num = 0.0F;
      float den = 0.0F;
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const float e = Exp(k[u][i] - largest);
        num = fmaf(e, v[u][i], num);
        den += e;
      }
      num += __shfl_xor_sync(0xFFFFFFFFU, num, 1);
      den += __shfl_xor_sync(0xFFFFFFFFU, den, 1);
      num += __shfl_xor_sync(0xFFFFFFFFU, num, 2);
      den += __shfl_xor_sync(0xFFFFFFFFU, den, 2);
      sums[i] = Combine(sums[i], {num, den, largest});
    }
  }
}

// blockIdx.x: tile; blockIdx.y: kAftWarpChannels channels per warp. Stores the tile's own sums.
// When causal these are the sums of its leaving tokens; otherwise of its tokens, in triple 2.
template <bool kVector>
__global__ void __launch_bounds__(256, 2) AftSumsKernel(AftArgs args) {
  const AftRow row(args, RowOfTile(args.rows, blockIdx.x, kAftTokens));
  const int index = row.FirstIndex() + static_cast<int>(blockIdx.x - row.first_tile);
  const int64_t hid = args.model.hid;
  const AftLane lane(hid, AftWarpChannel());
  if (row.slot < 0 || row.empty() || index >= row.EndIndex()) return;
  const AftTokens tokens(args, row);
  const int parts = args.model.causal ? args.triples : 1;
  for (int p = 0; p < parts; ++p) {
    AftPart part = {index * kAftTokens, min(row.end, (index + 1) * kAftTokens), false};
    if (args.model.causal) part = AftLeaving(args, row, index, p);
    Prefix sums[2];
    AftRangeSums<kVector>(tokens, part.from, part.to, lane, sums);
    if (lane.t != 0) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i >= lane.count) continue;
      const int triple = args.model.causal ? p : 2;
      StorePrefix(sums[i], AftSums(args, blockIdx.x, triple, lane.channel + i), hid);
    }
  }
}

// There is a thread for each row and channel. It replaces the sums of every tile by the prefix
// before the tile's first token, and advances the state.
template <int kPrefixes>
__global__ void __launch_bounds__(128) AftCarryKernel(AftArgs args) {
  constexpr int kAhead = 8 / kPrefixes;  // tiles whose sums are in flight
  const int64_t hid = args.model.hid;
  const AftRow row(args, blockIdx.x);
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (row.slot < 0 || row.empty() || channel >= hid) return;
  Prefix before[kPrefixes];
#pragma unroll
  for (int p = 0; p < kPrefixes; ++p) before[p] = AftStart(args, row, p, channel);
  for (int first = row.FirstIndex(); first < row.EndIndex(); first += kAhead) {
    Prefix own[kAhead][kPrefixes];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (first + u >= row.EndIndex()) break;
#pragma unroll
      for (int p = 0; p < kPrefixes; ++p) {
        own[u][p] = LoadPrefix(AftSums(args, row.Tile(first + u), p, channel), hid);
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (first + u >= row.EndIndex()) break;
#pragma unroll
      for (int p = 0; p < kPrefixes; ++p) {
        StorePrefix(before[p], AftSums(args, row.Tile(first + u), p, channel), hid);
        const bool resets = kPrefixes == 2 && AftLeaving(args, row, first + u, p).resets;
        before[p] = resets ? own[u][p] : Combine(before[p], own[u][p]);
      }
    }
  }
  if (args.state.base == nullptr) return;
#pragma unroll
  for (int p = 0; p < kPrefixes; ++p) {
    StorePrefix(before[p], AftState(args, row, p, channel), hid);
  }
}

// blockIdx.x: row; blockIdx.y: kAftRingTokens of the last tokens; threads: channels. Writes the
// row's last window - 1 tokens into the ring, after all reads of the old ones.
inline constexpr int kAftRingTokens = 8;

template <typename Ring, int N>
__global__ void __launch_bounds__(256) AftRingKernel(AftArgs args) {
  const AftRow row(args, blockIdx.x);
  if (row.slot < 0) return;
  const int64_t hid = args.model.hid;
  const int ring_rows = static_cast<int>(args.model.window) - 1;
  const int from =
      max(row.begin, row.end - ring_rows) + static_cast<int>(blockIdx.y) * kAftRingTokens;
  const int to = min(row.end, from + kAftRingTokens);
  float* slot = args.state.base + row.slot * args.state.slot_stride;
  auto* k_ring = reinterpret_cast<Ring*>(slot + args.k_ring);
  auto* v_ring = reinterpret_cast<Ring*>(slot + args.v_ring);
  for (int j = from; j < to; ++j) {
    const float* key = static_cast<const float*>(args.qkv.data) +
                       (row.token + j - row.begin) * args.qkv.stride + hid;
    const int64_t at = j % ring_rows * hid;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < hid; c += blockDim.x * N) {
      Store<N>(Load<N>(key + c), k_ring + at + c);
      Store<N>(Load<N>(key + hid + c), v_ring + at + c);
    }
  }
}

}  // namespace aft::kernels::cuda
