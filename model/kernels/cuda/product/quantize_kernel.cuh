#pragma once

#include "model/kernels/cuda/product/quantize.h"
#include "model/kernels/cuda/quantized.cuh"
#include "model/kernels/cuda/sums.cuh"
#include "model/kernels/cuda/wkv/blend_kernel.cuh"

namespace aft::kernels::cuda::product {

constexpr int kQuantizeBlock = 256;

// A block has a part of a row. It reads it twice, the second time from its cache. Without the
// number of blocks, ptxas uses only 32 registers for sm_80 and spills.
template <bool kWhole>
__global__ void __launch_bounds__(kQuantizeBlock, 4)
    QuantizeKernel(QuantizeModel model, In x, Out y) {
  const int part = static_cast<int>(blockIdx.y);
  const int begin = model.begin == nullptr ? 0 : model.begin[part];
  const int end = model.begin == nullptr ? static_cast<int>(model.width) : model.begin[part + 1];
  const float* const from = static_cast<const float*>(x.data) + blockIdx.x * x.stride;
  int8_t* const to =
      static_cast<int8_t*>(y.data) + blockIdx.x * y.stride + begin + part * kScaleBytes;
  const auto load = [&](int column) {
    Channels<4> group = LoadExisting<4, kWhole>(from + column, end - column);
    if (model.function == nullptr) return group;
    for (int i = 0; i < 4 && column + i < end; ++i) {
      group[i] = wkv::ApplyFunction(model.function[column + i], group[i]);
    }
    return group;
  };

  const int first = begin + 4 * static_cast<int>(threadIdx.x);
  unsigned largest = 0;
  for (int column = first; column < end; column += 4 * kQuantizeBlock) {
    largest = max(largest, LargestMagnitude(load(column)));
  }
  SharedLayout layout(DynamicShared());
  const RowScale scale(BlockMax(largest, layout.Take<unsigned>(kQuantizeBlock / 32)));
  for (int column = first; column < end; column += 4 * kQuantizeBlock) {
    scale.StoreIntegers(load(column), to + column - begin);
  }
  if (threadIdx.x == 0) scale.StoreScale(to);
}

}  // namespace aft::kernels::cuda::product
