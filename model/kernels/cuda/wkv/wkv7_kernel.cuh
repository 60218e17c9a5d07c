#pragma once

#include <cstdint>

#include "model/kernels/cuda/channels.cuh"
#include "model/kernels/cuda/sums.cuh"
#include "model/kernels/cuda/wkv/rows.cuh"
#include "model/kernels/cuda/wkv/wkv.h"

namespace aft::kernels::cuda::wkv {

constexpr int kWkv7MostThreads = 256;  // of a block; a wider head's state exceeds shared memory
constexpr int kWkv7MostWarps = kWkv7MostThreads / 32;

// All threads of a block read these.
struct Wkv7Shared {
  __host__ __device__ Wkv7Shared(SharedLayout& shared, int width, bool has_state)
      : step(shared.Take<float4>(width)),
        unit(shared.Take<float>(width)),
        sums(shared.Take<float>(4 * kWkv7MostWarps)),
        state(shared.Take<float>(has_state ? int64_t{width} * width : 0)) {}

  __device__ float* sum(int i) const { return sums + i * kWkv7MostWarps; }

  float4* step;  // [width] by key channel: decay, k, c * a without c's length, r
  float* unit;   // [width] c, without its length
  float* sums;   // [4, warps]
  float* state;  // S [width, width], if it is not in registers
};

// The column of S of one value channel, by key channel: kWidth registers, or shared memory.
template <int kWidth>
struct Wkv7Column {
  __device__ Wkv7Column(const Wkv7Shared& /*shared*/, int /*width*/, int /*channel*/) {}
  __device__ float& operator[](int j) { return s[j]; }

  float s[kWidth];
};
template <>
struct Wkv7Column<0> {
  __device__ Wkv7Column(const Wkv7Shared& shared, int count, int channel)
      : s(shared.state + channel), width(count) {}
  __device__ float& operator[](int j) { return s[j * width]; }

  float* s;
  int width;
};

// The numbers of one channel of a token; zeros for a thread without a channel.
struct Wkv7Inputs {
  float r, w, k, v, a, g;
};
template <typename T>
__device__ inline Wkv7Inputs LoadInputs(const T* in, int64_t hid, bool exists) {
  if (!exists) return {};
  return {ToFloat(in[0]),       ToFloat(in[hid]),     ToFloat(in[2 * hid]),
          ToFloat(in[3 * hid]), ToFloat(in[4 * hid]), ToFloat(in[5 * hid])};
}

// A block runs the tokens of row blockIdx.y through head blockIdx.x. Thread i has key channel i
// while a token is prepared, and value channel i afterwards. A token has three barriers: after the
// preparation, and in both sums of the norm. Each array is read between two of them.
template <int kWidth, typename T, typename Y>
__global__ void __launch_bounds__(kWidth > 0 ? kWidth : kWkv7MostThreads)
    Wkv7Kernel(Wkv7Params params, int head_width, ChunkRows rows, In packed, State state, Out out) {
  const int width = kWidth > 0 ? kWidth : head_width;
  const int i = static_cast<int>(threadIdx.x);
  const bool exists = kWidth > 0 || i < width;
  const int64_t channel = int64_t{blockIdx.x} * width + (exists ? i : 0);
  const Row row(rows, blockIdx.y);
  if (row.begin == row.end) return;
  Y* const y = static_cast<Y*>(out.data) + channel;
  if (row.slot < 0) {
    for (int64_t t = row.begin; exists && t < row.end; ++t) {
      y[t * out.stride] = FromFloat<Y>(0.0F);
    }
    return;
  }
  SharedLayout layout(DynamicShared());
  const Wkv7Shared shared(layout, width, kWidth == 0);
  const float key_scale = params.key_scale[channel];
  const float key_rate = params.key_rate[channel];
  const float bonus_weight = params.bonus[channel];
  const float norm_weight = params.norm_weight[channel];
  const float norm_bias = params.norm_bias[channel];
  const int64_t column = int64_t{blockIdx.x} * width * width + (exists ? i : 0);
  float* const kept = state.base + row.slot * state.slot_stride + column;
  const float* before = kept;  // null: zeros
  if (row.is_new) before = params.initial == nullptr ? nullptr : params.initial + column;
  Wkv7Column<kWidth> s(shared, width, i);
#pragma unroll
  for (int j = 0; j < width; ++j) {
    if (exists) s[j] = before == nullptr ? 0.0F : before[j * width];
  }

  const auto count = static_cast<float>(width);
  const T* const in = static_cast<const T*>(packed.data) + channel;
  Wkv7Inputs next = LoadInputs(in + row.begin * packed.stride, params.hid, exists);
  for (int64_t t = row.begin; t < row.end; ++t) {
    const Wkv7Inputs x = next;
    if (t + 1 < row.end) next = LoadInputs(in + (t + 1) * packed.stride, params.hid, exists);
    const float rate = Sigmoid(x.a);
    const float key = x.k * fmaf(rate - 1.0F, key_rate, 1.0F);
    const float unit = x.k * key_scale;
    if (exists) {
      // e^(-1/2) = 0.60653...: the smallest decay is exp(-0.6065) = 0.545.
      shared.step[i] = make_float4(Exp(-0.606530660F * Sigmoid(x.w)), key, unit * rate, x.r);
      shared.unit[i] = unit;
    }
    StoreWarpSum(unit * unit, shared.sum(0));
    StoreWarpSum(x.r * key * bonus_weight, shared.sum(1));
    __syncthreads();
    const float square = SumOfWarps(shared.sum(0));
    const float bonus = SumOfWarps(shared.sum(1));
    const float scale = rsqrtf(fmaxf(square, 1e-24F));
    float sum = 0.0F;
    if (exists) {
      float found = 0.0F;
#pragma unroll
      for (int j = 0; j < width; ++j) found = fmaf(shared.unit[j], s[j], found);
      found *= scale * scale;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float4 step = shared.step[j];
        s[j] = fmaf(step.x, s[j], fmaf(-found, step.z, step.y * x.v));
        sum = fmaf(s[j], step.w, sum);
      }
    }
    const float mean = BlockSum(sum, shared.sum(2)) / count;
    const float centred = exists ? sum - mean : 0.0F;
    const float variance = BlockSum(centred * centred, shared.sum(3)) / count;
    const float normed = centred * rsqrtf(variance + count * 1e-5F);
    const float with_bonus = fmaf(bonus, x.v, fmaf(normed, norm_weight, norm_bias));
    if (exists) y[t * out.stride] = FromFloat<Y>(with_bonus * x.g);
  }
#pragma unroll
  for (int j = 0; j < width; ++j) {
    if (exists) kept[j * width] = s[j];
  }
}

}  // namespace aft::kernels::cuda::wkv
