#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/sums_kernel.cuh"
#include "model/kernels/cuda/aft/window.cuh"

// AFT-local and AFT-full over many tokens, as products on tensor cores (model/kernels/README.md).
// For the tokens t of a tile and the tokens j that are in the window of any of them,
//
//   [num | den] = E [e v | e] + exp(m - a) [prefix],   e_j = exp(k_j - a)
//
// E[t, j] = exp(w(t, j)) is the same for all channels: a block computes it once, kAftColumns
// columns at a time. A warp owns 16 channels. Its lanes hold the keys and values of exactly those
// elements of [e v | e] that they pass to the products, so each exponential is computed once, and
// keys and values do not go through shared memory. The anchor a rises with the keys, and the sums
// are rescaled. If it was too high for some token, or something was not finite, Exact computes the
// channel again, row by row. Each product is three products of TF32, which together have fp32's
// accuracy.
namespace aft::kernels::cuda {

// [e v | e] of 8 tokens as operands of products: [channel of the pair][register].
struct AftOperands {
  uint32_t num[2][2];
  uint32_t den[2][2];
};

// The tokens of one tile for the 16 channels of a warp.
template <bool kVector, int kPrefixes, bool kCausal>
class AftTile {
 public:
  static constexpr int kRowTiles = kAftTokens / 16;
  static constexpr int kQueries = 2;             // of a lane, loaded at once
  static constexpr int kEach = kAftColumns / 4;  // columns of a lane

  // `before`: the prefixes of the warp's channels, kAftWarpChannels each, in shared memory.
  __device__ AftTile(const AftArgs& args, const AftRow& row, const AftWindow<kPrefixes, kCausal>& w,
                     const AftLane& lane, const Prefix* before)
      : args_(args), row_(row), w_(w), lane_(lane), before_(before), tokens_(args, row) {}

  // Starts the sums with the prefix. When wide, `lifts` are those of AftWindow::Lifts.
  __device__ void Start(const float* lifts) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      anchor_[c] = StartAnchor(2 * lane_.g + c);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) num_[m][c][i] = den_[m][c][i] = 0.0F;
      }
    }
#pragma unroll 1
    for (int p = 0; p < kPrefixes; ++p) {
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        const int channel = 4 * lane_.t + o;
        const Prefix before = before_[p * kAftWarpChannels + channel];
        const float e = Exp(before.max - StartAnchor(channel));
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
          const int r = 8 * i + lane_.g;
          if (!w_.SeesPrefix(w_.first + r, p)) continue;
          float& num = num_[i / 2][o % 2][i % 2 * 2 + o / 2];
          float& den = den_[i / 2][o % 2][i % 2 * 2 + o / 2];
          num = fmaf(e, before.num, num);
          den = fmaf(e, before.den, den);
        }
      }
    }
    if (!w_.model.wide) return;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const float e = Exp(-lifts[8 * i + lane_.g]);
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        num_[i / 2][o % 2][i % 2 * 2 + o / 2] *= e;
        den_[i / 2][o % 2][i % 2 * 2 + o / 2] *= e;
      }
    }
  }

  // Sets k_ and v_ to the lane's keys and values of kAftColumns columns from `column` on, masked
  // and rounded.
  __device__ void Enter(int column) {
    if (column < tokens_.begin()) {
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const int j = column + 4 * u + lane_.t;
        tokens_.GetAny<2, kVector>(j, w_.HasColumn(j), lane_.channel, lane_.count, k_[u], v_[u]);
      }
      return;
    }
    AftTokens::Raw<2> read[kEach];
    Read(column, read);
    if (!tokens_.masked() && column >= w_.column_from && column + kAftColumns <= w_.column_to) {
#pragma unroll
      for (int u = 0; u < kEach; ++u) tokens_.Enter(read[u], k_[u], v_[u]);
    } else {
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const int j = column + 4 * u + lane_.t;
        tokens_.Enter(read[u], j, w_.HasColumn(j), k_[u], v_[u]);
      }
    }
  }

  // Adds the columns of the last Enter. `weights` are the AftWindow::Weights of these columns.
  __device__ void Add(int column, const float* weights) {
    RaiseAnchor();
#pragma unroll
    for (int step = 0; step < kAftColumns / 8; ++step) {
      const unsigned row_tiles = w_.RowTiles(column + 8 * step);
      if (row_tiles == 0) continue;
      AftOperands high;
      AftOperands low;
      MakeOperands(step, high, low);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        if ((row_tiles >> m & 1U) == 0) continue;
        const float4 four = reinterpret_cast<const float4*>(
            weights)[(m * (kAftColumns / 8) + step) * 32 + static_cast<int>(threadIdx.x) % 32];
        const float e[4] = {four.x, four.y, four.z, four.w};
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = ToTf32(e[i]);
        uint32_t a_low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) a_low[i] = ToTf32(e[i] - __uint_as_float(a[i]));
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          MmaTf32(num_[m][c], a_low, high.num[c]);
          MmaTf32(den_[m][c], a_low, high.den[c]);
          MmaTf32(num_[m][c], a, low.num[c]);
          MmaTf32(den_[m][c], a, low.den[c]);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          MmaTf32(num_[m][c], a, high.num[c]);
          MmaTf32(den_[m][c], a, high.den[c]);
        }
      }
    }
  }

  // Divides, gates and stores the sums. Exact computes inaccurate channels again.
  __device__ void Finish() const {
    const int first = lane_.channel - 2 * lane_.g;
    const int channel = first + 4 * lane_.t;
    const int count = static_cast<int>(args_.model.hid) - channel;
    unsigned again = 0;
#pragma unroll
    for (int rows = 0; rows < 2 * kRowTiles; rows += kQueries) {
      Channels<4> q[kQueries];
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        const int t = w_.first + 8 * (rows + i) + lane_.g;
        q[i] = tokens_.Query<4, kVector>(min(max(t, w_.row_from), w_.row_to - 1), channel);
      }
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        const int m = (rows + i) / 2;
        const int half = (rows + i) % 2;
        const int t = w_.first + 8 * (rows + i) + lane_.g;
        if (!w_.HasRow(t)) continue;
        Channels<4> y;
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          const float num = num_[m][o % 2][2 * half + o / 2];
          const float den = den_[m][o % 2][2 * half + o / 2];
          const bool finite = den <= kLargest && fabsf(num) <= kLargest;
          if (!(den >= kLeastSum && finite)) again |= 1U << o;
          y[o] = Gated(num, den, q[i][o]);
        }
        StoreOut<4, kVector>(args_.y, row_.token + t - row_.begin, channel, y, count);
      }
    }
    if (count < 4) again &= count <= 0 ? 0U : (1U << count) - 1;
    unsigned channels = again << (4 * lane_.t);
    if (__any_sync(0xFFFFFFFFU, channels != 0 ? 1 : 0) == 0) return;
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) {
      channels |= __shfl_xor_sync(0xFFFFFFFFU, channels, bit);
    }
    Exact(first, channels);
  }

 private:
  // Sums relative to exp(anchor) are accurate from this size on: what underflowed, below 2^-126, is
  // less than 1e-9 of them even times exp(kNarrowBias). Wide weights are at most 1.
  static constexpr float kLeastSum = 1e-20F;
  static constexpr float kLargest = 3e38F;
  // The anchor rises only when a key exceeds it by more than this, so e is at most exp(kSlack).
  static constexpr float kSlack = 16.0F;

  // Reads the columns of Enter, none of which are in a ring.
  __device__ void Read(int column, AftTokens::Raw<2> (&read)[kEach]) const {
    if (column + kAftColumns <= w_.column_to) {
      const float* key = tokens_.Key(column + lane_.t);
#pragma unroll
      for (int u = 0; u < kEach; ++u, key += 4 * tokens_.stride()) {
        read[u] = tokens_.Read<2, kVector>(key, lane_.channel);
      }
    } else {
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const int j = min(column + 4 * u + lane_.t, w_.column_to - 1);
        read[u] = tokens_.Read<2, kVector>(tokens_.Key(j), lane_.channel);
      }
    }
  }

  __device__ float StartAnchor(int channel) const {
    float anchor = kEmptyMax;
#pragma unroll
    for (int p = 0; p < kPrefixes; ++p) {
      if (w_.HoldsPrefix(p)) anchor = fmaxf(anchor, before_[p * kAftWarpChannels + channel].max);
    }
    return anchor;
  }

  __device__ void RaiseAnchor() {
    float largest[2];
    bool rises = false;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float x = k_[0][c];
#pragma unroll
      for (int u = 1; u < kEach; ++u) x = fmaxf(x, k_[u][c]);
      x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
      x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
      largest[c] = x > anchor_[c] + kSlack ? x : anchor_[c];
      rises = rises || largest[c] != anchor_[c];
    }
    if (__any_sync(0xFFFFFFFFU, rises ? 1 : 0) == 0) return;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float e = Exp(anchor_[c] - largest[c]);
      anchor_[c] = largest[c];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = __shfl_sync(0xFFFFFFFFU, e, (2 * lane_.t + i) * 4);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            num_[m][c][2 * half + i] *= scale;
            den_[m][c][2 * half + i] *= scale;
          }
        }
      }
    }
  }

  __device__ void MakeOperands(int step, AftOperands& high, AftOperands& low) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float e = Exp(k_[2 * step + i][c] - anchor_[c]);
        const float v = v_[2 * step + i][c];
        high.den[c][i] = ToTf32(e);
        high.num[c][i] = ToTf32(__fmul_rn(e, v));
        low.den[c][i] = ToTf32(e - __uint_as_float(high.den[c][i]));
        low.num[c][i] = ToTf32(fmaf(e, v, -__uint_as_float(high.num[c][i])));
      }
    }
  }

  // Computes the channels whose bits are set in `channels`; bit 0 is channel `first`. Each lane
  // takes one token at a time.
  __device__ void Exact(int first, unsigned channels) const {
    __syncwarp();
    while (channels != 0) {
      const int c = __ffs(static_cast<int>(channels)) - 1;
      channels &= channels - 1;
      for (int r = static_cast<int>(threadIdx.x) % 32; r < kAftTokens; r += 32) {
        if (w_.HasRow(w_.first + r)) ExactRow(before_ + c, w_.first + r, first + c);
      }
    }
  }

  // Exponents are (K - M) + w, the difference first, then relative to the largest of them.
  __device__ void ExactRow(const Prefix* before, int t, int channel) const {
    const int from = max(w_.column_from, w_.Oldest(t));
    const int to = kCausal ? t + 1 : w_.column_to;
    Channels<1> k;
    Channels<1> v;
    float max_key = kEmptyMax;
    bool sees = false;
#pragma unroll
    for (int p = 0; p < kPrefixes; ++p) {
      const Prefix& prefix = before[p * kAftWarpChannels];
      if (!w_.SeesPrefix(t, p) || prefix.den == 0.0F) continue;
      max_key = fmaxf(max_key, prefix.max);
      sees = true;
    }
    for (int j = from; j < to; ++j) {
      tokens_.GetAny<1, false>(j, true, channel, 1, k, v);
      max_key = fmaxf(max_key, k[0]);
      sees = sees || k[0] != -INFINITY;
    }
    float largest = -INFINITY;
#pragma unroll
    for (int p = 0; p < kPrefixes; ++p) {
      if (!w_.SeesPrefix(t, p)) continue;
      largest = fmaxf(largest, before[p * kAftWarpChannels].max - max_key);
    }
    for (int j = from; j < to; ++j) {
      tokens_.GetAny<1, false>(j, true, channel, 1, k, v);
      largest = fmaxf(largest, k[0] - max_key + w_.Bias(t, j));
    }
    float num = 0.0F;
    float den = 0.0F;
#pragma unroll
    for (int p = 0; p < kPrefixes; ++p) {
      if (!w_.SeesPrefix(t, p)) continue;
      const Prefix& prefix = before[p * kAftWarpChannels];
      const float e = Exp(prefix.max - max_key - largest);
      num = fmaf(e, prefix.num, num);
      den = fmaf(e, prefix.den, den);
    }
    for (int j = from; j < to; ++j) {
      tokens_.GetAny<1, false>(j, true, channel, 1, k, v);
      const float e = Exp(k[0] - max_key + w_.Bias(t, j) - largest);
      num = fmaf(e, v[0], num);
      den += e;
    }
    const float q = tokens_.Query<1, false>(t, channel)[0];
    Channels<1> y;
    y[0] = sees ? Gated(num, den, q) : 0.0F;
    StoreOut<1, false>(args_.y, row_.token + t - row_.begin, channel, y, 1);
  }

  const AftArgs& args_;
  const AftRow& row_;
  const AftWindow<kPrefixes, kCausal>& w_;
  const AftLane& lane_;
  const Prefix* before_;
  const AftTokens tokens_;
  Channels<2> k_[kEach];
  Channels<2> v_[kEach];
  float anchor_[2];
  // [16 tokens][channel of the pair] as MmaTf32 has them: column n of channel c is channel 2n + c.
  float num_[kRowTiles][2][4];
  float den_[kRowTiles][2][4];
};

// Stores zeros for the rows of a tile.
template <bool kVector>
__device__ inline void AftZeros(const AftArgs& args, const AftRow& row, int from, int to,
                                const AftLane& lane) {
  const int64_t channel = lane.channel - 2 * lane.g + 4 * lane.t;
  for (int t = from + lane.g; t < to; t += 8) {
    StoreOut<4, kVector>(args.y, row.token + t - row.begin, channel, Fill<4>(0.0F),
                         args.model.hid - channel);
  }
}

// The most warps of a block that let two blocks run on a multiprocessor with enough registers.
inline constexpr int kAftTileWarps = 6;

// blockIdx.x: tile, or with kWalks a row. A block then goes from the row's first tile to the last
// and computes the prefixes on the way. blockIdx.y: kAftWarpChannels channels per warp. Dynamic
// shared memory: AftTileShared.
template <bool kVector, int kPrefixes, bool kCausal, bool kWalks>
__global__ void __launch_bounds__(32 * kAftTileWarps, 2) AftTileKernel(AftArgs args) {
  static_assert(!kWalks || (kCausal && kPrefixes == 1));
  SharedLayout layout(DynamicShared());
  const AftTileShared shared(layout,
                             kPrefixes * kAftWarpChannels * static_cast<int>(blockDim.x) / 32);
  // The last tiles come first: the pass that summed the tiles has left their keys and values in L2.
  const int64_t tile = static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x;
  const AftRow row(args, kWalks ? blockIdx.x : RowOfTile(args.rows, tile, kAftTokens));
  const AftLane lane(args.model.hid, AftWarpChannel());
  const bool active = AftWarpChannel() < args.model.hid;
  int index = row.FirstIndex();
  if constexpr (!kWalks) index += static_cast<int>(tile - row.first_tile);
  if (row.empty() || index >= row.EndIndex()) return;
  if (row.slot < 0) {
    const int end = kWalks ? row.end : min(row.end, (index + 1) * kAftTokens);
    AftZeros<kVector>(args, row, max(row.begin, index * kAftTokens), end, lane);
    return;
  }

  // The warp's prefixes. Lanes with t = 0 write them, and all lanes read them.
  Prefix* const before =
      shared.before + threadIdx.x / 32 * static_cast<unsigned>(kPrefixes * kAftWarpChannels);
#pragma unroll
  for (int p = 0; p < kPrefixes; ++p) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (lane.t != 0) continue;
      Prefix sums;
      if (c < lane.count) {
        sums = kWalks ? AftStart(args, row, p, lane.channel + c)
                      : LoadPrefix(AftSums(args, tile, p, lane.channel + c), args.model.hid);
      }
      before[p * kAftWarpChannels + 2 * lane.g + c] = sums;
    }
  }
  __syncwarp();
  float* weights = shared.weights;
  do {
    const AftWindow<kPrefixes, kCausal> window(args, row, index);
    if (args.model.wide) window.Lifts(shared.lifts);
    AftTile<kVector, kPrefixes, kCausal> sums(args, row, window, lane, before);
    sums.Start(shared.lifts);
    int column = window.column_from / kAftColumns * kAftColumns;
    for (; column < window.column_to; column += kAftColumns) {
      window.Weights(column, shared.lifts, weights);
      sums.Enter(column);
      __syncthreads();
      if (active) sums.Add(column, weights);
      // Switches buffers. All warps finished reading the other buffer before the last barrier.
      weights = weights == shared.weights ? shared.weights + kAftWeights : shared.weights;
    }
    if (active) sums.Finish();
    if constexpr (kWalks) {
      const AftPart leaving = AftLeaving(args, row, index, 0);
      Prefix own[2];
      AftRangeSums<kVector>(AftTokens(args, row), leaving.from, leaving.to, lane, own);
      __syncwarp();
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        Prefix& sums_before = before[2 * lane.g + c];
        if (lane.t == 0) sums_before = Combine(sums_before, own[c]);
      }
      __syncwarp();
    }
    ++index;
  } while (kWalks && index < row.EndIndex());
  if constexpr (kWalks) {
    if (args.state.base == nullptr || lane.t != 0) return;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (c < lane.count) {
        StorePrefix(before[2 * lane.g + c], AftState(args, row, 0, lane.channel + c),
                    args.model.hid);
      }
    }
  }
}

}  // namespace aft::kernels::cuda
