#pragma once

#include <cstdint>

#include "model/kernels/cuda/aft/math.cuh"
#include "model/kernels/cuda/wkv/rows.cuh"
#include "model/kernels/cuda/wkv/wkv.h"

namespace aft::kernels::cuda::wkv {

constexpr int kWkv4Block = 128;

// A thread runs the tokens of row blockIdx.y through one channel. The sums are those of AFT, whose
// maximum falls by the decay before each token. It loads the numbers of kTokens tokens before it
// uses the first of them.
template <int kTokens, typename Y>
__global__ void __launch_bounds__(kWkv4Block)
    Wkv4Kernel(Wkv4Params params, ChunkRows rows, In packed, State state, Out out) {
  const int64_t hid = params.hid;
  const int64_t channel = int64_t{blockIdx.x} * kWkv4Block + threadIdx.x;
  const Row row(rows, blockIdx.y);
  if (channel >= hid || row.begin == row.end) return;
  Y* const y = static_cast<Y*>(out.data) + channel;
  if (row.slot < 0) {
    for (int64_t t = row.begin; t < row.end; ++t) y[t * out.stride] = FromFloat<Y>(0.0F);
    return;
  }
  float* const kept = state.base + row.slot * state.slot_stride + channel;
  Prefix sums;
  if (!row.is_new) sums = {kept[0], kept[hid], kept[2 * hid]};
  const float decay = params.decay[channel];
  const float bonus = params.bonus[channel];
  const float* const in = static_cast<const float*>(packed.data) + channel;
  for (int64_t first = row.begin; first < row.end; first += kTokens) {
    float r[kTokens];
    float k[kTokens];
    float v[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (first + i >= row.end) break;
      const float* const token = in + (first + i) * packed.stride;
      r[i] = token[0];
      k[i] = token[hid];
      v[i] = token[2 * hid];
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (first + i >= row.end) break;
      Prefix seen = sums;
      Insert(seen, k[i] + bonus, v[i]);
      y[(first + i) * out.stride] = FromFloat<Y>(Gated(seen.num, seen.den, r[i]));
      sums.max += decay;
      Insert(sums, k[i], v[i]);
    }
  }
  kept[0] = sums.num;
  kept[hid] = sums.den;
  kept[2 * hid] = sums.max;
}

}  // namespace aft::kernels::cuda::wkv
