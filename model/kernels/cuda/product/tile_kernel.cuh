#pragma once

#include "model/kernels/cuda/product/kernel.cuh"

// Products of many rows of int8. A block computes a tile of y.
namespace aft::kernels::cuda::product {

// The size of a tile, and how the warps of a block divide the work: by rows, by outs, and by
// columns of x and of the weight. Shared memory has kStages stages of kColumns columns each.
template <int kRowsOf, int kOutsOf, int kColumnsOf, int kRowWarps, int kOutWarps, int kColumnWarps>
struct TileShape {
  static constexpr int kRows = kRowsOf;
  static constexpr int kOuts = kOutsOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kStages = 4;
  static constexpr int kStageBytes = (kRows + kOuts) * kColumns;
  static constexpr int kThreads = 32 * kRowWarps * kOutWarps * kColumnWarps;
  static constexpr int kSplits = kColumnWarps;
  // A thread copies 16 columns of a row at a time, and all threads these rows.
  static constexpr int kParts = kColumns / 16;
  static constexpr int kCopiedRows = kThreads / kParts;
  static constexpr int kCopies = (kRows + kOuts) / kCopiedRows;
  // The part of a warp.
  static constexpr int kWarpRows = kRows / kRowWarps;
  static constexpr int kWarpOuts = kOuts / kOutWarps;
  static constexpr int kWarpColumns = kColumns / kColumnWarps;
  static_assert(kWarpRows % 16 == 0 && kWarpOuts % 16 == 0 && kWarpColumns % 32 == 0);
  static_assert(kThreads % kParts == 0 && (kRows + kOuts) % kCopiedRows == 0);
  static_assert(kParts >= 4 && kSplits <= 2);
  static_assert(kRows * kOuts * 4 <= kStages * kStageBytes);

  __device__ explicit TileShape(int warp)
      : row(warp / kOutWarps % kRowWarps * kWarpRows),
        out(warp % kOutWarps * kWarpOuts),
        split(warp / (kOutWarps * kRowWarps)) {}

  // The address in a stage of the 16 columns that begin at column 16 * part of a row. Their order
  // differs in neighbouring rows, so that neither ldmatrix, which reads 16 bytes of eight rows, nor
  // a copy of whole rows uses a bank of shared memory twice.
  __device__ static unsigned At(unsigned row, unsigned part) {
    const unsigned order = kParts >= 8 ? row % 8 : row / (8 / kParts) % kParts;
    return row * kColumns + (part ^ order) * 16;
  }

  // The first row and out of this warp's part, and its share of a stage's columns.
  int row;
  int out;
  int split;
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    TileKernel(ProductModel model, In x, int64_t count, Out y) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const Tile own(thread / 32);
  const int in = static_cast<int>(model.in);
  const int64_t first_row = int64_t{blockIdx.y} * Tile::kRows;
  const int64_t first_out = int64_t{blockIdx.x} * Tile::kOuts;
  const auto* const x_rows = static_cast<const int8_t*>(x.data);
  SharedLayout layout(DynamicShared());
  int8_t* const stages = layout.Take<int8_t>(Tile::kStages * Tile::kStageBytes);

  // A thread copies the same columns of several rows of x, then of the weight.
  const int copied_row = thread / Tile::kParts;
  const int copied_column = thread % Tile::kParts * 16;
  const int8_t* from[Tile::kCopies];
  bool exists[Tile::kCopies];
#pragma unroll
  for (int i = 0; i < Tile::kCopies; ++i) {
    const int row = copied_row + i * Tile::kCopiedRows;
    const bool is_x = row < Tile::kRows;
    const int64_t at = is_x ? first_row + row : first_out + row - Tile::kRows;
    exists[i] = at < (is_x ? count : model.out);
    from[i] =
        (is_x ? x_rows + at * x.stride : static_cast<const int8_t*>(model.weight) + at * model.in) +
        copied_column;
  }
  // Requests the columns of a stage.
  const int steps = (in + Tile::kColumns - 1) / Tile::kColumns;
  const auto request = [&](int step) {
    int8_t* const stage = stages + step % Tile::kStages * Tile::kStageBytes;
    if (step < steps) {
      const bool in_row = step * Tile::kColumns + copied_column < in;
#pragma unroll
      for (int i = 0; i < Tile::kCopies; ++i) {
        CopyAsync16(stage + Tile::At(copied_row + i * Tile::kCopiedRows, thread % Tile::kParts),
                    from[i] + step * Tile::kColumns, exists[i] && in_row);
      }
    }
    CommitCopies();
  };

  // ldmatrix: the lane's row and columns in the four matrices of 8 rows and 16 bytes that are an
  // operand A, and in those that are two operands B.
  const int first_part = own.split * Tile::kWarpColumns / 16;
  const auto a_at = [&](int m, int part) {
    return Tile::At(own.row + m * 16 + lane % 16, first_part + part + lane / 16);
  };
  const auto b_at = [&](int n, int part) {
    return Tile::At(Tile::kRows + own.out + n * 8 + lane / 16 * 8 + lane % 8,
                    first_part + part + lane / 8 % 2);
  };
  constexpr int kM = Tile::kWarpRows / 16;
  constexpr int kN = Tile::kWarpOuts / 8;
  const bool has_rows = first_row + own.row < count;  // the same for the warp
  int c[kM][kN][4] = {};
  for (int step = 0; step < Tile::kStages - 1; ++step) request(step);
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<Tile::kStages - 2>();
    __syncthreads();  // also: all warps have read the stage that is requested next
    request(step + Tile::kStages - 1);
    if (!has_rows) continue;
    const int8_t* const stage = stages + step % Tile::kStages * Tile::kStageBytes;
#pragma unroll
    for (int part = 0; part < Tile::kWarpColumns / 16; part += 2) {
      uint32_t a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        LoadMatrices(a[m], stage + a_at(m, part));
      }
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        uint32_t b[4];
        LoadMatrices(b, stage + b_at(n, part));
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          MmaInt8(c[m][n], a[m], {b[0], b[1]});
          MmaInt8(c[m][n + 1], a[m], {b[2], b[3]});
        }
      }
    }
  }

  if constexpr (Tile::kSplits == 2) {  // add the sums of the other half of the columns
    constexpr int kHalf = Tile::kThreads / 2;
    int* const sums = reinterpret_cast<int*>(stages) + thread % kHalf;
    __syncthreads();
#pragma unroll
    for (int i = 0; own.split == 1 && i < kM * kN * 4; ++i) {
      sums[i * kHalf] = c[i / (kN * 4)][i / 4 % kN][i % 4];
    }
    __syncthreads();
    if (own.split == 1) return;
#pragma unroll
    for (int i = 0; i < kM * kN * 4; ++i) c[i / (kN * 4)][i / 4 % kN][i % 4] += sums[i * kHalf];
  }
  if (!has_rows) return;
  const bool pairs = y.stride % 2 == 0 && reinterpret_cast<uintptr_t>(y.data) % 8 == 0;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + own.row + m * 16 + half * 8 + lane / 4;
      if (row >= count) continue;
      const float row_scale = ScaleOf(x_rows + row * x.stride);
      float* const to = static_cast<float*>(y.data) + row * y.stride;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const int64_t out = first_out + own.out + n * 8 + lane % 4 * 2;
        if (out >= model.out) continue;
        const bool has_two = out + 1 < model.out;
        Channels<2> result = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (i == 1 && !has_two) break;
          result[i] = Multiplied<int8_t>::Result(model, row_scale, c[m][n][half * 2 + i],
                                                 static_cast<int>(out) + i);
        }
        Activate(model.activation, result);
        if (pairs && has_two) {
          Store(result, to + out);
        } else {
          to[out] = result[0];
          if (has_two) to[out + 1] = result[1];
        }
      }
    }
  }
}

}  // namespace aft::kernels::cuda::product
