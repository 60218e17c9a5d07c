#pragma once

#include "model/kernels/cuda/activation.cuh"
#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/product/product.h"
#include "model/kernels/cuda/ptx.cuh"
#include "model/kernels/cuda/quantized.cuh"

namespace aft::kernels::cuda::product {

// How numbers of type T are multiplied, and what a sum of products becomes before the activation.
// `x` is the row that the sum belongs to.
template <typename T>
struct Multiplied;

template <>
struct Multiplied<Bf16> {
  using Sum = float;
  __device__ static void Mma(Sum (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    MmaBf16(c, a, b);
  }
  __device__ static float Result(const ProductModel& model, const Bf16* /*x*/, Sum sum, int out) {
    return model.bias == nullptr ? sum : sum + ToFloat(static_cast<const Bf16*>(model.bias)[out]);
  }
};

template <>
struct Multiplied<int8_t> {
  using Sum = int;
  __device__ static void Mma(Sum (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    MmaInt8(c, a, b);
  }
  __device__ static float Result(const ProductModel& model, const int8_t* x, Sum sum, int out) {
    return Result(model, ScaleOf(x), sum, out);
  }
  __device__ static float Result(const ProductModel& model, float row_scale, Sum sum, int out) {
    const float y = __fmul_rn(static_cast<float>(sum), row_scale * model.scale[out]);
    return model.bias == nullptr ? y : y + static_cast<const float*>(model.bias)[out];
  }
};

constexpr int kOuts = 8;  // columns of y that a block computes
// Columns of x and of the weight that a warp multiplies at a time.
template <typename T>
constexpr int kStep = 64 / sizeof(T);
constexpr int kSumsStride = kOuts + 1;

// The warps of a block divide the columns of x among themselves; afterwards their sums are added in
// a fixed order. x is the tensor core's operand A with its 16 rows, the weight is operand B.
//
// A product does not depend on the order of its terms. So a lane reads eight neighbours of a row at
// once, and they serve as its elements of two products: the first four stand for columns 2t,
// 2t + 1, 2t + 8 and 2t + 9 of the one, the last four for those of the other (ptx.cuh). The rows of
// x and those of the weight agree in this. With int8 it reads sixteen.
//
// kHeld: the number of steps that a warp reads before it multiplies any of them. kEight: there are
// at most 8 rows, and the registers for the others are left to more warps.
template <int kWarps, int kHeld, bool kEight, typename T, typename OutT>
__global__ void __launch_bounds__(32 * kWarps)
    ProductKernel(ProductModel model, In x, int count, Out y) {
  using Sum = typename Multiplied<T>::Sum;
  constexpr int kNumbers = 16 / sizeof(T);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int in = static_cast<int>(model.in);
  const int first_out = static_cast<int>(blockIdx.x) * kOuts;
  const bool has_out = first_out + g < model.out;
  const T* const weight = static_cast<const T*>(model.weight) + (first_out + int64_t{g}) * model.in;
  const T* const x_rows = static_cast<const T*>(x.data);
  const T* const upper = x_rows + g * x.stride;
  const T* const lower = upper + 8 * x.stride;

  Sum c[2][4] = {};  // two chains of sums, which do not wait for each other
  for (int first = warp * kStep<T>; first < in; first += kHeld * kWarps * kStep<T>) {
    uint4 b[kHeld];
    uint4 a[kHeld];
    uint4 a8[kHeld];
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      const int column = first + s * kWarps * kStep<T> + kNumbers * t;
      b[s] = LoadOrZero(weight + column, has_out && column < in);
    }
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      const int column = first + s * kWarps * kStep<T> + kNumbers * t;
      a[s] = LoadOrZero(upper + column, g < count && column < in);
      a8[s] = kEight ? uint4{} : LoadOrZero(lower + column, g + 8 < count && column < in);
    }
    __syncwarp();
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      Multiplied<T>::Mma(c[0], {a[s].x, a8[s].x, a[s].y, a8[s].y}, {b[s].x, b[s].y});
      Multiplied<T>::Mma(c[1], {a[s].z, a8[s].z, a[s].w, a8[s].w}, {b[s].z, b[s].w});
    }
  }

  SharedLayout layout(DynamicShared());
  Sum* const sums = layout.Take<Sum>(kWarps * kFewRows * kSumsStride);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = warp * static_cast<int>(kFewRows) + g + i / 2 * 8;
    sums[row * kSumsStride + 2 * t + i % 2] = c[0][i] + c[1][i];
  }
  __syncthreads();
  const int out = static_cast<int>(threadIdx.x) % kOuts;
  const int row = static_cast<int>(threadIdx.x) / kOuts;
  if (row >= count || first_out + out >= model.out) return;
  Sum sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    sum += sums[(w * static_cast<int>(kFewRows) + row) * kSumsStride + out];
  }
  Channels<1> result = {
      Multiplied<T>::Result(model, x_rows + row * x.stride, sum, first_out + out)};
  Activate(model.activation, result);
  Store(result, static_cast<OutT*>(y.data) + row * y.stride + first_out + out);
}

}  // namespace aft::kernels::cuda::product
