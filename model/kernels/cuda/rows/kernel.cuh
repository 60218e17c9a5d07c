#ifndef AFT_MODEL_KERNELS_CUDA_ROWS_KERNEL_CUH_
#define AFT_MODEL_KERNELS_CUDA_ROWS_KERNEL_CUH_

#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx.cuh"
#include "model/kernels/cuda/rows/rows.h"

// In a namespace of its own: other kernels have helpers of the same names.
namespace aft::kernels::cuda::row_kernels {

// ---- Groups of neighbouring columns

// kCount numbers at `from`, aligned to all of them: one access of 8 or 16 bytes.
__device__ inline void LoadWhole(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}
template <typename T>
__device__ inline void Unpack(unsigned pair, float& low, float& high) {
  low = ToFloat(T{static_cast<uint16_t>(pair & 0xFFFFU)});
  high = ToFloat(T{static_cast<uint16_t>(pair >> 16)});
}
template <typename T>
__device__ inline void LoadWhole(const T* from, float (&to)[4]) {
  const uint2 pairs = *reinterpret_cast<const uint2*>(from);
  Unpack<T>(pairs.x, to[0], to[1]);
  Unpack<T>(pairs.y, to[2], to[3]);
}
template <typename T>
__device__ inline void LoadWhole(const T* from, float (&to)[8]) {
  const uint4 pairs = *reinterpret_cast<const uint4*>(from);
  Unpack<T>(pairs.x, to[0], to[1]);
  Unpack<T>(pairs.y, to[2], to[3]);
  Unpack<T>(pairs.z, to[4], to[5]);
  Unpack<T>(pairs.w, to[6], to[7]);
}
__device__ inline void LoadWhole(const float* from, float (&to)[8]) {
  float half[4];
  LoadWhole(from, half);
  for (int i = 0; i < 4; ++i) to[i] = half[i];
  LoadWhole(from + 4, half);
  for (int i = 0; i < 4; ++i) to[4 + i] = half[i];
}

template <typename T>
__device__ inline unsigned Pack(float low, float high) {
  return FromFloat<T>(low).bits | static_cast<unsigned>(FromFloat<T>(high).bits) << 16;
}
template <>
__device__ inline unsigned Pack<Bf16>(float low, float high) {
  return PackBf16(low, high);
}
__device__ inline void StoreWhole(float* to, const float (&from)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}
template <typename T>
__device__ inline void StoreWhole(T* to, const float (&from)[4]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(Pack<T>(from[0], from[1]), Pack<T>(from[2], from[3]));
}
template <typename T>
__device__ inline void StoreWhole(T* to, const float (&from)[8]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(Pack<T>(from[0], from[1]), Pack<T>(from[2], from[3]),
                                             Pack<T>(from[4], from[5]), Pack<T>(from[6], from[7]));
}

// Columns [column, column + kCount) of a row, zeros beyond its width. kWhole: width, alignment and
// stride allow for whole groups, and `column` is inside.
template <bool kWhole, int kCount, typename T>
__device__ inline void LoadColumns(const T* row, int column, int width, float (&to)[kCount]) {
  if constexpr (kWhole) {
    LoadWhole(row + column, to);
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = column + i < width ? ToFloat(row[column + i]) : 0.0F;
  }
}
template <bool kWhole, int kCount, typename T>
__device__ inline void StoreColumns(T* row, int column, int width, const float (&from)[kCount]) {
  if constexpr (kWhole) {
    StoreWhole(row + column, from);
  } else {
    for (int i = 0; i < kCount; ++i) {
      if (column + i < width) row[column + i] = FromFloat<T>(from[i]);
    }
  }
}

// ---- The residual and its norm

template <typename InT, typename OutT>
struct AddNormRows {
  float* x;
  const InT* branch;  // or null
  int64_t branch_stride;
  const float* branch_bias;  // or null
  const float* weight;
  const float* bias;
  OutT* y;  // or null
  int64_t y_stride;
  int64_t count;
  int width;
  float eps;
};

__device__ inline float WarpSum(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xFFFFFFFF, x, lanes);
  return x;
}

// Of all threads that share a row: a warp, or a block with kWarps floats of shared memory that no
// other sum uses.
template <bool kBlock>
__device__ inline float RowSum(float x, float* shared) {
  x = WarpSum(x);
  if constexpr (kBlock) {
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = WarpSum(lane < blockDim.x / 32 ? shared[lane] : 0.0F);
  }
  return x;
}

constexpr int kAddNormColumns = 4;  // neighbours that a thread takes at a time
constexpr int kMaxWarps = 16;
constexpr int kAddNormWarpBlock = 128;  // threads at most, where a warp has a row
constexpr int kAddNormMaxBlock = 512;

// A row is read once and kept in registers: kGroups groups of columns a thread. The variance is
// that of the centred row, E[x^2] - mean^2 would cancel.
template <typename InT, typename OutT, int kGroups, bool kWhole, bool kBlock>
__global__ void __launch_bounds__(kBlock ? kAddNormMaxBlock : kAddNormWarpBlock)
    AddNormKernel(const AddNormRows<InT, OutT> rows) {
  const int threads = kBlock ? static_cast<int>(blockDim.x) : 32;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int64_t row =
      kBlock ? blockIdx.x : int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (!kBlock && row >= rows.count) return;  // a whole warp, and no barrier follows
  const int width = rows.width;
  float* const x_row = rows.x + row * width;
  const auto column = [&](int group) { return (group * threads + thread) * kAddNormColumns; };

  // Group g of the row at `from`; zeros beyond its end.
  const auto load = [&](const auto* from, int g, float(&to)[kAddNormColumns]) {
    if (column(g) < width) {
      LoadColumns<kWhole>(from, column(g), width, to);
    } else {
      for (float& zero : to) zero = 0.0F;
    }
  };

  // All loads of an array come before the first store that they might depend on.
  float x[kGroups][kAddNormColumns];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) load(x_row, g, x[g]);
  if (rows.branch != nullptr) {
    float branch[kGroups][kAddNormColumns];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) load(rows.branch + row * rows.branch_stride, g, branch[g]);
    if (rows.branch_bias != nullptr) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float bias[kAddNormColumns];
        load(rows.branch_bias, g, bias);
        for (int i = 0; i < kAddNormColumns; ++i) branch[g][i] += bias[i];
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      for (int i = 0; i < kAddNormColumns; ++i) x[g][i] += branch[g][i];
      if (column(g) < width) StoreColumns<kWhole>(x_row, column(g), width, x[g]);
    }
  }
  if (rows.y == nullptr) return;

  float weight[kGroups][kAddNormColumns];
  float bias[kGroups][kAddNormColumns];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    load(rows.weight, g, weight[g]);
    load(rows.bias, g, bias[g]);
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
  const float scale = rsqrtf(square / static_cast<float>(width) + rows.eps);

  OutT* const y_row = rows.y + row * rows.y_stride;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    for (int i = 0; i < kAddNormColumns; ++i) {
      x[g][i] = x[g][i] * scale * weight[g][i] + bias[g][i];
    }
    if (column(g) < width) StoreColumns<kWhole>(y_row, column(g), width, x[g]);
  }
}

// ---- Rows mapped element by element

template <typename InT, typename OutT>
struct MappedRows {
  const InT* x;
  int64_t x_stride;
  const int64_t* index;  // or null: row i of x becomes row i of y
  const float* bias;     // or null
  Activation activation;
  OutT* y;
  int64_t y_stride;
  int64_t count;
  int width;
};

template <int kCount>
__device__ inline void Activate(Activation activation, float (&x)[kCount]) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:  // as max(x, 0) of the CPU, but NaN stays
      for (float& value : x) value = value < 0.0F ? 0.0F : value;
      break;
    case Activation::kGelu: {
      constexpr float kSqrtHalf = 0.707106781F;
      for (float& value : x) value = 0.5F * value * (1.0F + erff(value * kSqrtHalf));
      break;
    }
    case Activation::kGeluTanh: {  // 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u)
      constexpr float kMinusTwiceSqrtTwoByPi = -1.59576912F;
      for (float& value : x) {
        const float u = value + 0.044715F * value * value * value;
        value *= Reciprocal(1.0F + Exp(kMinusTwiceSqrtTwoByPi * u));
      }
      break;
    }
  }
}

constexpr int kMapBlock = 128;
constexpr int kMapRows = 4;  // of a thread, which so loads four times before it waits

// A thread has one group of columns in kMapRows rows.
template <typename InT, typename OutT, int kCount, bool kWhole>
__global__ void __launch_bounds__(kMapBlock) MapKernel(const MappedRows<InT, OutT> rows) {
  const unsigned groups = static_cast<unsigned>((rows.width + kCount - 1) / kCount);
  const unsigned item = blockIdx.x * kMapBlock + threadIdx.x;
  const int column = static_cast<int>(item % groups) * kCount;
  const int64_t first = static_cast<int64_t>(item / groups) * kMapRows;

  float x[kMapRows][kCount];
#pragma unroll
  for (int r = 0; r < kMapRows; ++r) {
    for (float& zero : x[r]) zero = 0.0F;
    if (first + r >= rows.count) continue;
    const int64_t from = rows.index == nullptr ? first + r : rows.index[first + r];
    if (from >= 0) LoadColumns<kWhole>(rows.x + from * rows.x_stride, column, rows.width, x[r]);
  }
  float bias[kCount] = {};
  if (rows.bias != nullptr) LoadColumns<kWhole>(rows.bias, column, rows.width, bias);
#pragma unroll
  for (int r = 0; r < kMapRows; ++r) {
    if (first + r >= rows.count) continue;
    for (int i = 0; i < kCount; ++i) x[r][i] += bias[i];
    Activate(rows.activation, x[r]);
    StoreColumns<kWhole>(rows.y + (first + r) * rows.y_stride, column, rows.width, x[r]);
  }
}

// ---- Embedding

template <typename T>
struct EmbedRows {
  const T* table;
  const float* learned;       // or null
  const double* frequencies;  // or null
  const int32_t* tokens;
  const int32_t* slots;
  const int64_t* positions;
  const int32_t* last_sampled;
  float* x;
  int64_t count;
  int width;
  float scale;
};

constexpr int kEmbedBlock = 128;
constexpr int kEmbedColumns = 4;

// A thread has one group of columns of a row. Waves are computed in double, from the angle in half
// turns, which needs no slow reduction.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kEmbedBlock) EmbedKernel(const EmbedRows<T> rows) {
  const int width = rows.width;
  const unsigned groups = static_cast<unsigned>((width + kEmbedColumns - 1) / kEmbedColumns);
  const unsigned item = blockIdx.x * kEmbedBlock + threadIdx.x;
  const int column = static_cast<int>(item % groups) * kEmbedColumns;
  const int64_t row = item / groups;
  if (row >= rows.count) return;
  float* const x_row = rows.x + row * width;
  float x[kEmbedColumns] = {};
  const int32_t slot = rows.slots[row];
  if (slot < 0) {
    StoreColumns<kWhole>(x_row, column, width, x);
    return;
  }
  const int32_t given = rows.tokens[row];
  const int64_t token = given == kLastSampledToken ? rows.last_sampled[slot] : given;
  LoadColumns<kWhole>(rows.table + token * width, column, width, x);
  for (float& value : x) value *= rows.scale;
  const int64_t position = rows.positions[row];
  if (rows.learned != nullptr) {
    float learned[kEmbedColumns];
    LoadColumns<kWhole>(rows.learned + position * width, column, width, learned);
    for (int i = 0; i < kEmbedColumns; ++i) x[i] += learned[i];
  } else if (rows.frequencies != nullptr) {
    for (int i = 0; i < kEmbedColumns; i += 2) {
      if (column + i >= width) break;
      constexpr double kHalfTurn = 0.31830988618379067;  // 1 / pi
      const double angle = static_cast<double>(position) * rows.frequencies[(column + i) / 2];
      double sine;
      double cosine;
      sincospi(angle * kHalfTurn, &sine, &cosine);
      x[i] += static_cast<float>(sine);
      x[i + 1] += static_cast<float>(cosine);
    }
  }
  StoreColumns<kWhole>(x_row, column, width, x);
}

}  // namespace aft::kernels::cuda::row_kernels

#endif  // AFT_MODEL_KERNELS_CUDA_ROWS_KERNEL_CUH_
