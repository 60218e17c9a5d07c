#ifndef AFT_MODEL_KERNELS_CUDA_AFT_SCAN_KERNEL_CUH_
#define AFT_MODEL_KERNELS_CUDA_AFT_SCAN_KERNEL_CUH_

#include <cstdint>

#include "model/kernels/cuda/aft_rows.cuh"

// AFT-simple over many tokens. A tile's sums start empty, token by token; the sums that token t
// sees are Combine(those before its tile, those of its tile up to t). So a row that one thread
// walks through and a row whose tiles are worked on at once give the same bits.
namespace aft::kernels::cuda {

// N channels at the same place of q, k, v as they lie in memory.
template <typename T, int N>
struct alignas(sizeof(T) * N) AftPacked {
  __device__ Channels<N> floats() const {
    Channels<N> c;
#pragma unroll
    for (int i = 0; i < N; ++i) c[i] = ToFloat(x[i]);
    return c;
  }
  T x[N];
};

template <typename In, int N>
struct AftBatch {
  static constexpr int kTokens = sizeof(In) == 2 ? 8 : 4;  // divides kAftTokens

  AftPacked<In, N> q[kTokens];
  AftPacked<In, N> k[kTokens];
  AftPacked<In, N> v[kTokens];
};

// Tokens [from, to) of a row, N channels a thread. Loads of the next batch are in flight while one
// is worked on.
template <typename In, typename OutT, int N, AftScan kScan>
struct AftScanner {
  using Batch = AftBatch<In, N>;
  static constexpr bool kQueries = kScan != AftScan::kSums;
  static constexpr bool kKeys = kScan != AftScan::kGate;

  __device__ void Fetch(int first, int from, int to, Batch& batch) const {
#pragma unroll
    for (int u = 0; u < Batch::kTokens; ++u) {
      const int j = first + u;
      if (j < from || j >= to) continue;
      const auto* at = reinterpret_cast<const AftPacked<In, N>*>(in + (j - begin) * in_stride);
      if constexpr (kQueries) batch.q[u] = at[0];
      if constexpr (kKeys) {
        batch.k[u] = at[hid / N];
        batch.v[u] = at[2 * (hid / N)];
      }
    }
  }

  __device__ void Run(int from, int to) {
    int first = from / Batch::kTokens * Batch::kTokens;
    Batch next;
    Fetch(first, from, to, next);
    for (; first < to; first += Batch::kTokens) {
      const Batch batch = next;
      if (first + Batch::kTokens < to) Fetch(first + Batch::kTokens, from, to, next);
      if (kScan == AftScan::kRow && first % kAftTokens == 0) EndTile();
#pragma unroll
      for (int u = 0; u < Batch::kTokens; ++u) {
        if (first + u >= from && first + u < to) Token(first + u, batch, u);
      }
    }
  }

  __device__ void Token(int j, const Batch& batch, int u) {
    if constexpr (kKeys) {
      Channels<N> k = batch.k[u].floats();
      Channels<N> v = batch.v[u].floats();
      if (mask != nullptr) {
        const float add = mask[j - begin];
#pragma unroll
        for (int i = 0; i < N; ++i) {
          k[i] = add > kMaskedBelow ? k[i] + add : -INFINITY;
          v[i] = add > kMaskedBelow ? v[i] : 0.0F;
        }
      }
#pragma unroll
      for (int i = 0; i < N; ++i) Insert(tile[i], k[i], v[i]);
    }
    if constexpr (kQueries) {
      const Channels<N> q = batch.q[u].floats();
      Channels<N> y;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Prefix sums = Combine(before[i], tile[i]);
        // No key is visible: all are masked.
        y[i] = sums.den == 0.0F ? 0.0F : Gated(sums.num, sums.den, q[i]);
      }
      Store<N>(y, out + (j - begin) * out_stride);
    }
  }

  __device__ void EndTile() {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      before[i] = Combine(before[i], tile[i]);
      tile[i] = {};
    }
  }

  const In* in;  // query of the row's first token, at the thread's first channel
  int64_t in_stride;
  int hid;
  int begin;
  const float* mask;  // of the row's first token, or null
  OutT* out;
  int64_t out_stride;
  Prefix before[N];
  Prefix tile[N];
};

// blockIdx.y: kThreads * N channels.
template <typename In, typename OutT, int N, AftScan kScan>
__global__ void __launch_bounds__(128) AftScanKernel(AftArgs args) {
  const int64_t hid = args.model.hid;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const int64_t r = kScan == AftScan::kRow ? blockIdx.x : AftRowOfTile(args, blockIdx.x);
  const AftRow row(args, r);
  int from = row.begin;
  int to = row.end;
  if constexpr (kScan != AftScan::kRow) {
    const int index = row.FirstIndex() + static_cast<int>(blockIdx.x - row.first_tile);
    from = max(from, index * kAftTokens);
    to = min(to, (index + 1) * kAftTokens);
  }
  if (from >= to || channel >= hid) return;

  AftScanner<In, OutT, N, kScan> scan;
  scan.in = static_cast<const In*>(args.qkv) + row.token * args.qkv_stride + channel;
  scan.in_stride = args.qkv_stride;
  scan.hid = static_cast<int>(hid);
  scan.begin = row.begin;
  scan.mask = args.rows.mask == nullptr ? nullptr : args.rows.mask + row.token;
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
  scan.Run(from, to);
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

#endif  // AFT_MODEL_KERNELS_CUDA_AFT_SCAN_KERNEL_CUH_
