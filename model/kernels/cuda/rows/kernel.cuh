#pragma once

#include <type_traits>

#include "model/kernels/cuda/activation.cuh"
#include "model/kernels/cuda/channels.cuh"
#include "model/kernels/cuda/quantized.cuh"
#include "model/kernels/cuda/rows/rows.h"
#include "model/kernels/cuda/sums.cuh"

namespace aft::kernels::cuda::rows {

// Columns [column, column + N) of a row, with zeros beyond its width. kWhole: width, alignment and
// stride allow access to whole groups.
template <bool kWhole, int N, typename T>
__device__ inline Channels<N> LoadColumns(const T* row, int column, int width) {
  return LoadExisting<N, kWhole>(row + column, width - column);
}
template <bool kWhole, int N, typename T>
__device__ inline void StoreColumns(T* row, int column, int width, const Channels<N>& c) {
  StoreExisting<N, kWhole>(c, row + column, width - column);
}

// ---- The residual and its norm

// The sum of x over all threads that share a row, which are a warp or a block.
template <bool kBlock>
__device__ inline float RowSum(float x, float* shared) {
  if constexpr (kBlock) {
    return BlockSum(x, shared);
  } else {
    return WarpSum(x);
  }
}

template <bool kBlock>
__device__ inline unsigned RowMax(unsigned x, unsigned* shared) {
  if constexpr (kBlock) {
    return BlockMax(x, shared);
  } else {
    return WarpMax(x);
  }
}

constexpr int kAddNormColumns = 4;  // neighbours that a thread takes at a time
constexpr int kMaxWarps = 16;
constexpr int kAddNormWarpBlock = 128;  // most threads of a block where a warp has a row
constexpr int kAddNormMaxBlock = 512;

// A row is read once and kept in registers, kGroups groups of columns per thread. The variance is
// that of the centred row, because E[x^2] - mean^2 would cancel.
template <typename OutT, int kGroups, bool kWhole, bool kBlock>
__global__ void __launch_bounds__(kBlock ? kAddNormMaxBlock : kAddNormWarpBlock)
    AddNormKernel(NormModel norm, float* x_rows, In branch, const float* branch_bias, int64_t count,
                  Out y) {
  using Group = Channels<kAddNormColumns>;
  constexpr bool kQuantizes = std::is_same_v<OutT, int8_t>;
  const int threads = kBlock ? static_cast<int>(blockDim.x) : 32;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int64_t row =
      kBlock ? blockIdx.x : int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (!kBlock && row >= count) return;  // applies to a whole warp, and no barrier follows
  const int width = static_cast<int>(norm.width);
  float* const x_row = x_rows + row * width;
  const auto column = [&](int group) { return (group * threads + thread) * kAddNormColumns; };

  // All loads come before the first store and the first sum, because few rows spend their time
  // waiting for memory. Where there is nothing to read, 0 columns are read at some address.
  const bool has_branch = branch.data != nullptr;
  const auto* const branch_row =
      static_cast<const float*>(has_branch ? branch.data : x_rows) + row * branch.stride;
  const int branch_width = has_branch ? width : 0;
  const float* const added_row = branch_bias != nullptr ? branch_bias : x_row;
  const int added_width = has_branch && branch_bias != nullptr ? width : 0;
  Group x[kGroups];
  Group more[kGroups];
  Group added[kGroups];
  Group weight[kGroups];
  Group bias[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    x[g] = LoadColumns<kWhole, kAddNormColumns>(x_row, column(g), width);
    more[g] = LoadColumns<kWhole, kAddNormColumns>(branch_row, column(g), branch_width);
    added[g] = LoadColumns<kWhole, kAddNormColumns>(added_row, column(g), added_width);
    weight[g] = LoadColumns<kWhole, kAddNormColumns>(norm.weight, column(g), width);
    bias[g] = LoadColumns<kWhole, kAddNormColumns>(norm.bias, column(g), width);
  }
  if (has_branch) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      for (int i = 0; i < kAddNormColumns; ++i) x[g][i] += more[g][i] + added[g][i];
      StoreColumns<kWhole>(x_row, column(g), width, x[g]);
    }
  }

  SharedLayout layout(DynamicShared());
  float* const sums = kBlock ? layout.Take<float>(2 * kMaxWarps) : nullptr;
  float sum = 0.0F;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    for (int i = 0; i < kAddNormColumns; ++i) sum += x[g][i];
  }
  const float mean = RowSum<kBlock>(sum, sums) / static_cast<float>(width);
  float square = 0.0F;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    for (int i = 0; i < kAddNormColumns; ++i) {
      const bool inside = kWhole ? column(g) < width : column(g) + i < width;
      x[g][i] = inside ? x[g][i] - mean : 0.0F;
      square += x[g][i] * x[g][i];
    }
  }
  square = RowSum<kBlock>(square, sums + (kBlock ? kMaxWarps : 0));
  const float scale = rsqrtf(square / static_cast<float>(width) + norm.eps);

  OutT* const y_row = static_cast<OutT*>(y.data) + row * y.stride;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    for (int i = 0; i < kAddNormColumns; ++i) {
      x[g][i] = x[g][i] * scale * weight[g][i] + bias[g][i];
    }
    if constexpr (!kQuantizes) StoreColumns<kWhole>(y_row, column(g), width, x[g]);
  }
  if constexpr (kQuantizes) {
    unsigned largest = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) largest = max(largest, LargestMagnitude(x[g]));
    // All threads have read the first sums before they passed the barrier of the second ones.
    const RowScale row_scale(RowMax<kBlock>(largest, reinterpret_cast<unsigned*>(sums)));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column(g) < width) row_scale.StoreIntegers(x[g], y_row + column(g));
    }
    if (thread == 0) row_scale.StoreScale(y_row);
  }
}

// ---- Rows mapped element by element

constexpr int kMapBlock = 128;
constexpr int kMapRows = 4;  // rows of a thread, which issues four loads before it waits

// A thread processes one group of columns in kMapRows rows.
template <typename InT, typename OutT, int kCount, bool kWhole>
__global__ void __launch_bounds__(kMapBlock)
    MapKernel(In x, const int64_t* index, const float* bias, Activation activation, int64_t count,
              int width, Out y) {
  const unsigned groups = static_cast<unsigned>((width + kCount - 1) / kCount);
  const unsigned item = blockIdx.x * kMapBlock + threadIdx.x;
  const int column = static_cast<int>(item % groups) * kCount;
  const int64_t first = static_cast<int64_t>(item / groups) * kMapRows;

  Channels<kCount> mapped[kMapRows];
#pragma unroll
  for (int r = 0; r < kMapRows; ++r) {
    mapped[r] = Fill<kCount>(0.0F);
    if (first + r >= count) continue;
    const int64_t from = index == nullptr ? first + r : index[first + r];
    if (from < 0) continue;
    const InT* const row = static_cast<const InT*>(x.data) + from * x.stride;
    mapped[r] = LoadColumns<kWhole, kCount>(row, column, width);
  }
  auto added = Fill<kCount>(0.0F);
  if (bias != nullptr) added = LoadColumns<kWhole, kCount>(bias, column, width);
#pragma unroll
  for (int r = 0; r < kMapRows; ++r) {
    if (first + r >= count) continue;
    for (int i = 0; i < kCount; ++i) mapped[r][i] += added[i];
    Activate(activation, mapped[r]);
    OutT* const row = static_cast<OutT*>(y.data) + (first + r) * y.stride;
    StoreColumns<kWhole>(row, column, width, mapped[r]);
  }
}

// ---- Embedding

constexpr int kEmbedBlock = 128;
constexpr int kEmbedColumns = 4;

// A thread processes one group of columns of a row. Waves are computed in double from the angle in
// half turns, which needs no slow reduction.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kEmbedBlock)
    EmbedKernel(EmbedModel model, const int32_t* tokens, const int32_t* slots,
                const int64_t* positions, const int32_t* last_sampled, int64_t count, float* rows) {
  const int width = static_cast<int>(model.width);
  const unsigned groups = static_cast<unsigned>((width + kEmbedColumns - 1) / kEmbedColumns);
  const unsigned item = blockIdx.x * kEmbedBlock + threadIdx.x;
  const int column = static_cast<int>(item % groups) * kEmbedColumns;
  const int64_t row = item / groups;
  if (row >= count) return;
  auto x = Fill<kEmbedColumns>(0.0F);
  const int32_t slot = slots[row];
  if (slot >= 0) {
    const int32_t given = tokens[row];
    const int64_t token = given == kLastSampledToken ? last_sampled[slot] : given;
    constexpr bool kQuantized = std::is_same_v<T, int8_t>;
    const int64_t stride = kQuantized ? QuantizedColumns(width) : width;
    x = LoadColumns<kWhole, kEmbedColumns>(static_cast<const T*>(model.table) + token * stride,
                                           column, width);
    if constexpr (kQuantized) {
      for (float& value : x.x) value *= model.table_scale[token];
    }
    for (float& value : x.x) value *= model.scale;
    const int64_t position = positions[row];
    if (model.positions != nullptr) {
      const auto learned =
          LoadColumns<kWhole, kEmbedColumns>(model.positions + position * width, column, width);
      for (int i = 0; i < kEmbedColumns; ++i) x[i] += learned[i];
    } else if (model.frequencies != nullptr) {
      for (int i = 0; i < kEmbedColumns; i += 2) {
        if (column + i >= width) break;
        constexpr double kHalfTurn = 0.31830988618379067;  // 1 / pi
        const double angle = static_cast<double>(position) * model.frequencies[(column + i) / 2];
        double sine;
        double cosine;
        sincospi(angle * kHalfTurn, &sine, &cosine);
        x[i] += static_cast<float>(sine);
        x[i + 1] += static_cast<float>(cosine);
      }
    }
  }
  StoreColumns<kWhole>(rows + row * width, column, width, x);
}

}  // namespace aft::kernels::cuda::rows
