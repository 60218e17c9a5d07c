#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/sums_kernel.cuh"
#include "model/kernels/cuda/aft/window.cuh"

// Combine the sums of the tiles of a whole text, for tokens that see all of it. There is a thread
// for each text (blockIdx.x) and channel (blockIdx.y).
namespace aft::kernels::cuda {

// AFT-simple: replaces the sums of the first tile by those of all tiles.
__global__ void __launch_bounds__(128) AftTotalKernel(AftArgs args) {
  const AftRow row(args, blockIdx.x);
  const int64_t hid = args.model.hid;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (row.empty() || channel >= hid) return;
  Prefix sums;
#pragma unroll 4
  for (int i = 0; i < row.EndIndex(); ++i) {
    sums = Combine(sums, LoadPrefix(AftSums(args, row.Tile(i), 0, channel), hid));
  }
  StorePrefix(sums, AftSums(args, row.Tile(0), 0, channel), hid);
}

// Computes triples 0 and 1 of each tile, which are the sums of the tokens before and after its
// columns, from the tiles' own sums in triple 2.
__global__ void __launch_bounds__(128) AftOutsideKernel(AftArgs args) {
  const AftRow row(args, blockIdx.x);
  const int64_t hid = args.model.hid;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (row.empty() || channel >= hid) return;
  const int away = AftReach(static_cast<int>(args.model.window)) / kAftTokens + 1;
  const int end = row.EndIndex();
  Prefix before;
#pragma unroll 4
  for (int i = 0; i < end; ++i) {
    if (i >= away) {
      before = Combine(before, LoadPrefix(AftSums(args, row.Tile(i - away), 2, channel), hid));
    }
    StorePrefix(before, AftSums(args, row.Tile(i), 0, channel), hid);
  }
  Prefix after;
#pragma unroll 4
  for (int i = end - 1; i >= 0; --i) {
    if (i + away < end) {
      after = Combine(after, LoadPrefix(AftSums(args, row.Tile(i + away), 2, channel), hid));
    }
    StorePrefix(after, AftSums(args, row.Tile(i), 1, channel), hid);
  }
}

}  // namespace aft::kernels::cuda
