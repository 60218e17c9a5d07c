#pragma once

#include <cstdint>

#include "model/kernels/cuda/conv/narrow_tile.cuh"

namespace aft::kernels::cuda {

// Grid: places, channels / kConvNarrowChannels. REQUIRES: 1-D.
template <typename Y>
__global__ void __launch_bounds__(kConvNarrowThreads, 3) ConvNarrowKernel(ConvTileArgs args) {
  const ConvDims& dims = args.dims;
  const int64_t place = blockIdx.x;
  const ConvSequence sequence(args, ConvRowOf(args, place));
  const int64_t i = place - sequence.place;
  if (i >= sequence.tiles) return;
  SharedLayout layout(DynamicShared());
  const ConvNarrowShared shared(layout, dims);
  const int channel = static_cast<int>(blockIdx.y) * kConvNarrowChannels;
  const ConvNarrowTile tile(args, sequence, i, channel, shared);
  const int c = static_cast<int>(threadIdx.x) % kConvNarrowChannels;
  const int run = static_cast<int>(threadIdx.x) / kConvNarrowChannels;
  const bool mine = c < tile.channels();
  const int64_t token = sequence.token + tile.first() - sequence.begin + run * kConvRun;
  Y* const y = static_cast<Y*>(args.y.data) + token * args.y.stride + channel + c;
  const int rows = mine ? min(kConvRun, tile.rows() - run * kConvRun) : 0;
  if (sequence.slot < 0) {
    for (int r = 0; r < rows; ++r) y[r * args.y.stride] = FromFloat<Y>(0.0F);
    return;
  }

  const bool exact = tile.Prepare();
  const float* const q = tile.tokens().Packed(tile.first() + run * kConvRun) + channel + c;
  if (exact) {
    for (int r = 0; r < rows; ++r) {
      float num = 0.0F;
      float den = 0.0F;
      tile.Exactly(run * kConvRun + r, c, &num, &den);
      y[r * args.y.stride] = FromFloat<Y>(Gated(num, den, q[r * args.packed.stride]));
    }
    return;
  }

  const float* const values = shared.value + c;
  float* const before_runs = shared.run + c;
  float* const behind_runs = before_runs + kConvRuns * kConvNarrowChannels;
  before_runs[run * kConvNarrowChannels] = tile.OwnBefore(run, values, kConvNarrowChannels);
  behind_runs[run * kConvNarrowChannels] = tile.OwnBehind(run, values, kConvNarrowChannels);
  tile.SumDenominators();
  __syncthreads();
  if (!mine) return;
  float before = tile.Outside(c);
  float behind = 0.0F;
  for (int r = 0; r < run; ++r) before += before_runs[r * kConvNarrowChannels];
  for (int r = run + 1; r < kConvRuns; ++r) behind += behind_runs[r * kConvNarrowChannels];
  float num[kConvRun];
  const int head = tile.HeadOf(c);
  tile.Filter(run, values, kConvNarrowChannels, shared.tap + head, before, behind, num);
#pragma unroll
  for (int r = 0; r < kConvRun; ++r) {
    if (r >= rows) break;
    const float den = shared.den[(run * kConvRun + r) * shared.heads + head];
    const float gate = q[r * args.packed.stride];
    y[r * args.y.stride] = FromFloat<Y>(Gated(num[r], den, gate));
  }
}

}  // namespace aft::kernels::cuda
