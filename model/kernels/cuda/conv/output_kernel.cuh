#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "model/kernels/cuda/conv/output_tile.cuh"

namespace aft::kernels::cuda {

// num += A V over all columns, den[half] += this thread's part of A's row sums. With kPrecise a
// product is three products of TF32 halves, otherwise one.
template <bool kExact, bool kPrecise, int kChannels, bool kGrid>
__device__ inline void ConvMultiply(const ConvOutputTile<kChannels, kGrid>& tile,
                                    const ConvOutputShared<kChannels, kGrid>& shared, int channels,
                                    typename ConvOutputTile<kChannels, kGrid>::Flight& flight,
                                    float (&num)[kChannels / 8][4], float (&den)[2]) {
  constexpr int kStride = ConvOutputShared<kChannels, kGrid>::kStride;
  // ptx.cuh describes the fragments.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int k = lane % 4;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const auto row0 = tile.GetRow(warp_row + g);
  const auto row1 = tile.GetRow(warp_row + g + 8);
  // The number of columns that at least one of the warp's tokens sees.
  const int seen = warp_row < tile.rows() ? tile.Seen(warp_row + 15) : 0;

  for (int u0 = 0; u0 < tile.columns(); u0 += kConvColumns) {
    tile.StoreValues(u0, flight);
    __syncthreads();
    if (u0 + kConvColumns < tile.columns()) tile.Fetch(u0 + kConvColumns, flight);
#pragma unroll
    for (int u = 0; u < kConvColumns; u += 8) {
      if (u0 + u >= seen) break;
      const float weight[4] = {tile.template Weight<kExact>(row0, u0, u + k),
                               tile.template Weight<kExact>(row1, u0, u + k),
                               tile.template Weight<kExact>(row0, u0, u + k + 4),
                               tile.template Weight<kExact>(row1, u0, u + k + 4)};
      uint32_t a[4];
      uint32_t a_rest[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[j] = ToTf32(weight[j]);
        const float high = __uint_as_float(a[j]);
        a_rest[j] = ToTf32(weight[j] - high);
        den[j % 2] += kPrecise ? weight[j] : high;
      }
#pragma unroll
      for (int b = 0; b < kChannels / 8; ++b) {
        if (b * 8 >= channels) break;
        const float* const value = shared.value + (u + k) * kStride + b * 8 + g;
        const float v[2] = {value[0], value[4 * kStride]};
        const uint32_t high[2] = {ToTf32(v[0]), ToTf32(v[1])};
        if constexpr (kPrecise) {
          const uint32_t rest[2] = {ToTf32(v[0] - __uint_as_float(high[0])),
                                    ToTf32(v[1] - __uint_as_float(high[1]))};
          MmaTf32(num[b], a_rest, high);
          MmaTf32(num[b], a, rest);
        }
        MmaTf32(num[b], a, high);
      }
    }
    __syncthreads();
  }
}

// Grid: places, heads * chunks of kChannels of a head's channels.
template <typename Y, int kChannels, bool kGrid>
__global__ void __launch_bounds__(kConvOutputThreads, kGrid ? 3 : 4)
    ConvOutputKernel(ConvTileArgs args) {
  constexpr bool kPrecise = std::is_same_v<Y, float>;
  constexpr int kBlocks = kChannels / 8;
  using Shared = ConvOutputShared<kChannels, kGrid>;
  const ConvDims& dims = args.dims;
  const int64_t place = blockIdx.x;
  const ConvSequence sequence(args, ConvRowOf(args, place));
  const int64_t i = place - sequence.place;
  if (i >= sequence.tiles) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int chunks = (dims.width + kChannels - 1) / kChannels;
  const int head = static_cast<int>(blockIdx.y) / chunks;
  const int from = static_cast<int>(blockIdx.y) % chunks * kChannels;
  const int channels = min(kChannels, dims.width - from);
  const int channel = head * dims.width + from;
  const int64_t token = sequence.token + sequence.First(i) - sequence.begin;
  Y* const y = static_cast<Y*>(args.y.data) + token * args.y.stride + channel;
  if (sequence.slot < 0) {
    const int64_t rows = sequence.Last(i) - sequence.First(i);
    for (int64_t at = thread; at < rows * channels; at += kConvOutputThreads) {
      y[at / channels * args.y.stride + at % channels] = FromFloat<Y>(0.0F);
    }
    return;
  }

  SharedLayout layout(DynamicShared());
  const Shared shared(layout, args);
  ConvOutputTile<kChannels, kGrid> tile(args, sequence, i, head, channel, channels, shared);
  typename ConvOutputTile<kChannels, kGrid>::Flight flight;
  tile.Fetch(0, flight);
  float outside_max[2] = {kEmptyMax, kEmptyMax};
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    if (side < args.sides()) outside_max[side] = args.Carry(place, side)[dims.max() + head];
  }
  for (int c = thread; c < kChannels; c += kConvOutputThreads) shared.spoilt[c] = 0;
  tile.Prepare(fmaxf(outside_max[0], outside_max[1]));

  float num[kBlocks][4] = {};
  float den[2] = {0.0F, 0.0F};
  if (tile.exact()) {
    ConvMultiply<true, kPrecise>(tile, shared, channels, flight, num, den);
  } else {
    ConvMultiply<false, kPrecise>(tile, shared, channels, flight, num, den);
  }

  const int k = thread % 4;
  const float* const q = tile.tokens().Packed(tile.first()) + channel;
  const bool pairs = dims.width % 2 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = den[half];
    total += __shfl_xor_sync(0xFFFFFFFFU, total, 1);
    total += __shfl_xor_sync(0xFFFFFFFFU, total, 2);
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    if (row >= tile.rows()) continue;
    float weight[2] = {0.0F, 0.0F};
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      if (side >= args.sides()) continue;
      weight[side] = tile.OutsideWeight(row, outside_max[side]);
      total = fmaf(weight[side], args.Carry(place, side)[dims.den() + head], total);
    }
    if (total == 0.0F) total = 1.0F;  // the token sees no key: the output is 0
    const auto finish = [&](int c, float sum, float gate) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        if (side < args.sides()) {
          sum = fmaf(weight[side], args.Carry(place, side)[channel + c], sum);
        }
      }
      const int spoilt = shared.spoilt[c];
      if (spoilt > 0 && tile.columns() - spoilt < tile.Seen(row)) sum = NAN;
      return Gated(sum, total, gate);
    };
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int c = b * 8 + 2 * k;
      const float sums[2] = {num[b][2 * half], num[b][2 * half + 1]};
      const float* const gates = q + row * args.packed.stride + c;
      Y* const to = y + row * args.y.stride + c;
      if (pairs && c < channels) {
        Channels<2> two = Load<2>(gates, args.packed_aligned);
        two[0] = finish(c, sums[0], two[0]);
        two[1] = finish(c + 1, sums[1], two[1]);
        Store<2>(two, to, args.y_aligned);
      } else {
        for (int j = 0; j < 2; ++j) {
          if (c + j < channels) to[j] = FromFloat<Y>(finish(c + j, sums[j], gates[j]));
        }
      }
    }
  }
}

}  // namespace aft::kernels::cuda
