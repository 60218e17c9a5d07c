#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/rows.cuh"

// AFT-simple over many tokens. A tile's sums start empty. Tokens are added in batches, relative to
// the largest key up to the batch's end, which takes one exponential per token. Token t sees the
// sums before its tile and those of its tile up to t, each times its weight. So the bits are the
// same whether one thread goes through a row or the row's tiles are processed in parallel. Where
// keys rise within a batch so that a token's sums vanish, the channel is redone token by token.
namespace aft::kernels::cuda {

// The number of channels of a thread that loads 8 bytes at a time.
inline constexpr int kAftScanChannels = 2;

inline constexpr int kAftScanTokens = 4;  // in a batch; divides kAftTokens

template <int N>
struct AftBatch {
  Channels<N> q[kAftScanTokens];
  Channels<N> k[kAftScanTokens];
  Channels<N> v[kAftScanTokens];
};

// Processes tokens [from, to) of a row, N channels per thread. The next batch is loaded while the
// current one is processed.
template <typename OutT, int N, AftScan kScan>
struct AftScanner {
  using Batch = AftBatch<N>;
  static constexpr bool kQueries = kScan != AftScan::kSums;
  static constexpr bool kKeys = kScan != AftScan::kGate;
  static constexpr int kTokens = kAftScanTokens;

  __device__ void Run() {
    int first = from / kTokens * kTokens;
    Batch next;
    Fetch(first, next);
    for (; first < to; first += kTokens) {
      const Batch batch = next;
      if (first + kTokens < to) Fetch(first + kTokens, next);
      if (kScan == AftScan::kRow && first % kAftTokens == 0) EndTile();
      if (mask == nullptr && first >= from && first + kTokens <= to) {
        Work<true>(first, batch);
      } else {
        Work<false>(first, batch);
      }
    }
  }

  __device__ void EndTile() {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      before[i] = Combine(before[i], tile[i]);
      tile[i] = {};
    }
  }

  int from;
  int to;
  int begin;        // position of the row's first token
  const float* in;  // query of the row's first token, at the thread's first channel
  int64_t in_stride;
  int64_t hid;
  const float* mask;  // of the row's first token, or null
  OutT* out;
  int64_t out_stride;
  Prefix before[N];
  Prefix tile[N];

 private:
  // Sums from this size on are accurate: what underflowed is below 1e-12 of them.
  static constexpr float kLeastSum = 1e-26F;

  __device__ bool Has(int j) const { return j >= from && j < to; }

  __device__ void Fetch(int first, Batch& batch) const {
    const float* at = in + (first - begin) * in_stride;
#pragma unroll
    for (int u = 0; u < kTokens; ++u, at += in_stride) {
      if (!Has(first + u)) continue;
      if constexpr (kQueries) batch.q[u] = Load<N>(at);
      if constexpr (kKeys) {
        batch.k[u] = Load<N>(at + hid);
        batch.v[u] = Load<N>(at + 2 * hid);
      }
    }
  }

  // With kWhole all tokens of the batch exist, and no token is masked.
  template <bool kWhole>
  __device__ void Work(int first, const Batch& batch) {
    Channels<N> y[kTokens];
#pragma unroll
    for (int i = 0; i < N; ++i) Channel<kWhole>(first, batch, i, y);
    if constexpr (kQueries) {
      OutT* at = out + (first - begin) * out_stride;
#pragma unroll
      for (int u = 0; u < kTokens; ++u, at += out_stride) {
        if (kWhole || Has(first + u)) Store<N>(y[u], at);
      }
    }
  }

  // Processes channel i of the batch.
  template <bool kWhole>
  __device__ void Channel(int first, const Batch& batch, int i, Channels<N> (&y)[kTokens]) {
    if constexpr (kScan == AftScan::kGate) {
#pragma unroll
      for (int u = 0; u < kTokens; ++u) y[u][i] = Divided(before[i], batch.q[u][i]);
      return;
    }
    float k[kTokens];
    float v[kTokens];
    const Prefix start = tile[i];
    float largest = start.max;
#pragma unroll
    for (int u = 0; u < kTokens; ++u) {
      if constexpr (kWhole) {
        k[u] = batch.k[u][i];
        v[u] = batch.v[u][i];
      } else {
        const bool has = Has(first + u);
        const float add = mask != nullptr && has ? mask[first + u - begin] : 0.0F;
        const bool counts = has && add > kMaskedBelow;
        k[u] = counts ? batch.k[u][i] + add : -INFINITY;
        v[u] = counts ? batch.v[u][i] : 0.0F;
      }
      largest = fmaxf(largest, k[u]);
    }
    // The tile's sums have exactly these roundings, whatever else is computed from them.
    const float fade = Exp(start.max - largest);
    Prefix& sums = tile[i];
    sums = {__fmul_rn(start.num, fade), __fmul_rn(start.den, fade), largest};
    const float top = fmaxf(before[i].max, largest);
    const float weight_before = Exp(before[i].max - top);
    const float weight = Exp(largest - top);
    const float num = weight_before * before[i].num;
    const float den = weight_before * before[i].den;
    bool good = true;
#pragma unroll
    for (int u = 0; u < kTokens; ++u) {
      const float e = Exp(k[u] - largest);
      sums.num = fmaf(e, v[u], sums.num);
      sums.den += e;
      if constexpr (kQueries) {
        const float den_u = fmaf(weight, sums.den, den);
        if (kWhole || Has(first + u)) good = good && den_u >= kLeastSum;
        y[u][i] = Gated(fmaf(weight, sums.num, num), den_u, batch.q[u][i]);
      }
    }
    if (kQueries && !good) {
      Prefix exact = start;
#pragma unroll
      for (int u = 0; u < kTokens; ++u) {
        Insert(exact, k[u], v[u]);
        y[u][i] = Divided(Combine(before[i], exact), batch.q[u][i]);
      }
    }
  }

  // The output, or 0 when no key is visible because all are masked.
  __device__ static float Divided(const Prefix& sums, float q) {
    return sums.den == 0.0F ? 0.0F : Gated(sums.num, sums.den, q);
  }
};

// blockIdx.y: blockDim.x * N channels.
template <typename OutT, int N, AftScan kScan>
__global__ void __launch_bounds__(128) AftScanKernel(AftArgs args) {
  const int64_t hid = args.model.hid;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const int64_t r =
      kScan == AftScan::kRow ? blockIdx.x : RowOfTile(args.rows, blockIdx.x, kAftTokens);
  const AftRow row(args, r);
  int from = row.begin;
  int to = row.end;
  if constexpr (kScan != AftScan::kRow) {
    const int index = row.FirstIndex() + static_cast<int>(blockIdx.x - row.first_tile);
    from = max(from, index * kAftTokens);
    to = min(to, (index + 1) * kAftTokens);
  }
  if (from >= to || channel >= hid) return;

  AftScanner<OutT, N, kScan> scan;
  scan.from = from;
  scan.to = to;
  scan.begin = row.begin;
  scan.in = static_cast<const float*>(args.qkv.data) + row.token * args.qkv.stride + channel;
  scan.in_stride = args.qkv.stride;
  scan.hid = hid;
  scan.mask = args.mask == nullptr ? nullptr : args.mask + row.token;
  scan.out = static_cast<OutT*>(args.y.data) + row.token * args.y.stride + channel;
  scan.out_stride = args.y.stride;
  if (row.slot < 0) {
    if constexpr (kScan != AftScan::kSums) {
      for (int j = from; j < to; ++j) {
        Store<N>(Fill<N>(0.0F), scan.out + (j - row.begin) * args.y.stride);
      }
    }
    return;
  }
  if constexpr (kScan == AftScan::kRow) {
#pragma unroll
    for (int i = 0; i < N; ++i) scan.before[i] = AftStart(args, row, 0, channel + i);
  } else if constexpr (kScan != AftScan::kSums) {
    const int64_t tile = kScan == AftScan::kGate ? row.first_tile : blockIdx.x;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      scan.before[i] = LoadPrefix(AftSums(args, tile, 0, channel + i), hid);
    }
  }
  scan.Run();
  if constexpr (kScan == AftScan::kSums) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      StorePrefix(scan.tile[i], AftSums(args, blockIdx.x, 0, channel + i), hid);
    }
  } else if constexpr (kScan == AftScan::kRow) {
    if (args.state.base == nullptr) return;
    scan.EndTile();
#pragma unroll
    for (int i = 0; i < N; ++i)
      StorePrefix(scan.before[i], AftState(args, row, 0, channel + i), hid);
  }
}

}  // namespace aft::kernels::cuda
