#pragma once

#include "model/kernels/cuda/product/kernel.cuh"

// Products of many rows of int8. A block computes a tile of y.
namespace aft::kernels::cuda::product {

constexpr int kTileRows = 128;
constexpr int kTileOuts = 64;
constexpr int kTileColumns = 64;  // of x and of the weight in a stage of shared memory
constexpr int kStages = 3;
// Rows are an odd multiple of 16 bytes apart, so ldmatrix accesses no bank twice.
constexpr int kTileStride = kTileColumns + 16;
constexpr int kStageBytes = (kTileRows + kTileOuts) * kTileStride;
constexpr int kTileBlock = 256;
// The part of the tile that a warp computes. Warps are in rows of two.
constexpr int kWarpRows = 32;
constexpr int kWarpOuts = 32;

__global__ void __launch_bounds__(kTileBlock)
    TileKernel(ProductModel model, In x, int64_t count, Out y) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int in = static_cast<int>(model.in);
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  const int64_t first_out = int64_t{blockIdx.x} * kTileOuts;
  const auto* const x_rows = static_cast<const int8_t*>(x.data);
  SharedLayout layout(DynamicShared());
  int8_t* const stages = layout.Take<int8_t>(kStages * kStageBytes);

  // Requests the columns of a stage: rows of x, then those of the weight.
  const int steps = (in + kTileColumns - 1) / kTileColumns;
  const auto request = [&](int step) {
    constexpr int kParts = kTileColumns / 16;
    int8_t* const stage = stages + step % kStages * kStageBytes;
    for (int i = thread; step < steps && i < (kTileRows + kTileOuts) * kParts; i += kTileBlock) {
      const int row = i / kParts;
      const int column = i % kParts * 16;
      const bool is_x = row < kTileRows;
      const int64_t at = is_x ? first_row + row : first_out + row - kTileRows;
      const int8_t* const from =
          is_x ? x_rows + at * x.stride : static_cast<const int8_t*>(model.weight) + at * model.in;
      const int from_column = step * kTileColumns + column;
      CopyAsync16(stage + row * kTileStride + column, from + from_column,
                  at < (is_x ? count : model.out) && from_column < in);
    }
    CommitCopies();
  };

  // ldmatrix: the lane's row and column in the four matrices of 8 rows and 16 bytes that are an
  // operand A, and in those that are two operands B.
  const int warp_row = warp / 2 * kWarpRows;
  const int warp_out = warp % 2 * kWarpOuts;
  const int a_at = (warp_row + lane % 16) * kTileStride + lane / 16 * 16;
  const int b_at =
      (kTileRows + warp_out + lane / 16 * 8 + lane % 8) * kTileStride + lane / 8 % 2 * 16;
  const bool has_rows = first_row + warp_row < count;  // the same for the warp
  int c[kWarpRows / 16][kWarpOuts / 8][4] = {};
  for (int step = 0; step < kStages - 1; ++step) request(step);
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // also: all warps have read the stage that is requested next
    request(step + kStages - 1);
    if (!has_rows) continue;
    const int8_t* const stage = stages + step % kStages * kStageBytes;
#pragma unroll
    for (int column = 0; column < kTileColumns; column += 32) {
      uint32_t a[kWarpRows / 16][4];
#pragma unroll
      for (int m = 0; m < kWarpRows / 16; ++m) {
        LoadMatrices(a[m], stage + a_at + m * 16 * kTileStride + column);
      }
#pragma unroll
      for (int n = 0; n < kWarpOuts / 8; n += 2) {
        uint32_t b[4];
        LoadMatrices(b, stage + b_at + n * 8 * kTileStride + column);
#pragma unroll
        for (int m = 0; m < kWarpRows / 16; ++m) {
          MmaInt8(c[m][n], a[m], {b[0], b[1]});
          MmaInt8(c[m][n + 1], a[m], {b[2], b[3]});
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kWarpRows / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kWarpOuts / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = first_row + warp_row + m * 16 + lane / 4 + i / 2 * 8;
        const int64_t out = first_out + warp_out + n * 8 + lane % 4 * 2 + i % 2;
        if (row >= count || out >= model.out) continue;
        Channels<1> result = {Multiplied<int8_t>::Result(model, x_rows + row * x.stride, c[m][n][i],
                                                         static_cast<int>(out))};
        Activate(model.activation, result);
        Store(result, static_cast<float*>(y.data) + row * y.stride + out);
      }
    }
  }
}

}  // namespace aft::kernels::cuda::product
