#pragma once

#include <cstdint>

#include "model/kernels/cuda/channels.cuh"
#include "model/kernels/cuda/wkv/blend.h"

namespace aft::kernels::cuda::wkv {

constexpr int kEachBlock = 128;

// Calls each(row, column) for every number of a matrix [count, width], a thread for each.
template <typename Each>
__global__ void __launch_bounds__(kEachBlock) EachKernel(int64_t count, unsigned width, Each each) {
  const unsigned item = blockIdx.x * kEachBlock + threadIdx.x;
  const unsigned row = item / width;
  if (row < count) each(row, item % width);
}

__device__ inline void StoreNumber(const Out& to, int64_t i, float x) {
  ToOut(to, i, [x](auto* number) { Store(Channels<1>{{x}}, number); });
}

// Writes the last vector of a row to its state; other tokens do nothing.
struct KeepLast {
  __device__ void operator()(int64_t t, int64_t column) const {
    const int32_t slot = rows.slot[t];
    const bool last = rows.single || t + 1 == rows.tokens || rows.slot[t + 1] != slot;
    if (slot < 0 || !last) return;
    state.base[slot * state.slot_stride + column] = x[t * width + column];
  }

  TokenRows rows;
  const float* x;
  int64_t width;
  State state;
};

struct Shift {
  __device__ void operator()(int64_t t, int64_t column) const {
    const int32_t slot = rows.slot[t];
    const bool first = rows.single || t == 0 || rows.slot[t - 1] != slot;
    float now = 0.0F;
    float change = 0.0F;
    if (slot >= 0) {
      float before = 0.0F;
      if (!first) {
        before = x[(t - 1) * model.width + column];
      } else if (rows.position[t] > 0) {
        before = state.base[slot * state.slot_stride + column];
      }
      now = x[t * model.width + column];
      change = before - now;
    }
    for (int64_t part = 0; part < model.parts; ++part) {
      const float mixed = fmaf(change, model.share[part * model.width + column], now);
      StoreNumber(y, (part * part_rows + t) * y.stride + column, mixed);
    }
    if (rows.single) KeepLast{rows, x, model.width, state}(t, column);
  }

  ShiftModel model;
  TokenRows rows;
  const float* x;
  State state;
  Out y;
  int64_t part_rows;
};

__device__ inline float ApplyFunction(ColumnFunction function, float x) {
  if (function == ColumnFunction::kTanh) return Tanh(x);
  return function == ColumnFunction::kSigmoid ? Sigmoid(x) : x;
}

struct Columns {
  __device__ void operator()(int64_t row, int64_t column) const {
    StoreNumber(y, row * y.stride + column,
                ApplyFunction(function[column], x[row * width + column]));
  }

  const float* x;
  const ColumnFunction* function;
  int64_t width;
  Out y;
};

struct Values {
  __device__ void operator()(int64_t row, int64_t column) const {
    float& value = values[row * stride + column];
    const int64_t at = row * width + column;
    if (gate == nullptr) {
      first[at] = value;
    } else {
      value = fmaf(first[at] - value, Sigmoid(gate[at]), value);
    }
  }

  float* values;
  int64_t stride;
  const float* gate;
  int64_t width;
  float* first;
};

struct Gate {
  __device__ void operator()(int64_t row, int64_t column) const {
    y[row * width + column] *= Sigmoid(gate[row * width + column]);
  }

  const float* gate;
  int64_t width;
  float* y;
};

}  // namespace aft::kernels::cuda::wkv
