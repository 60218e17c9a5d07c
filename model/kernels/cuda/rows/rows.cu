#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/rows/kernel.cuh"
#include "model/kernels/cuda/rows/rows.h"

namespace aft::kernels::cuda {

using row_kernels::AddNormRows;
using row_kernels::EmbedRows;
using row_kernels::kAddNormColumns;
using row_kernels::kAddNormMaxBlock;
using row_kernels::kAddNormWarpBlock;
using row_kernels::kEmbedBlock;
using row_kernels::kEmbedColumns;
using row_kernels::kMapBlock;
using row_kernels::kMapRows;
using row_kernels::kMaxWarps;
using row_kernels::MappedRows;

namespace {

constexpr int64_t kMaxGrid = 0x7FFFFFFF;
constexpr int64_t kMostThreads = 0xFFFFFFFF - 1024;  // kernels count them in 32 bits

// Whether rows of `columns` numbers at `data` are accessed as whole groups of neighbours.
bool InGroups(const void* data, int64_t number_bytes, int64_t stride, int64_t width, int columns) {
  return width % columns == 0 && stride % columns == 0 && Aligned(data, number_bytes * columns);
}
bool InGroups(const In& x, int64_t width, int columns) {
  return InGroups(x.data, NumberBytes(x.type), x.stride, width, columns);
}
bool InGroups(const Out& y, int64_t width, int columns) {
  return InGroups(y.data, NumberBytes(y.type), y.stride, width, columns);
}
bool InGroups(const float* vector, int64_t width, int columns) {
  return InGroups(vector, sizeof(float), width, width, columns);
}

template <typename T>
struct Type {
  using Number = T;
};

// run(Type<InT>, Type<OutT>) of the numbers of a launch.
template <typename Run>
cudaError_t WithTypes(Number in, Number out, Run run) {
  if (in == Number::kBf16 && out == Number::kBf16) return run(Type<Bf16>(), Type<Bf16>());
  if (in == Number::kFp16 && out == Number::kFp16) return run(Type<Fp16>(), Type<Fp16>());
  if (in != Number::kFp32) return cudaErrorInvalidValue;
  switch (out) {
    case Number::kFp32:
      return run(Type<float>(), Type<float>());
    case Number::kBf16:
      return run(Type<float>(), Type<Bf16>());
    case Number::kFp16:
      return run(Type<float>(), Type<Fp16>());
  }
  return cudaErrorInvalidValue;
}

// ---- AddNorm. The shape depends on the width alone, and so does the order of a row's sums.

template <int kGroups, bool kWhole, typename InT, typename OutT>
cudaError_t AddNormByWarps(const AddNormRows<InT, OutT>& rows, Stream stream) {
  // Few rows spread over as many multiprocessors.
  constexpr int64_t kFew = 512;
  const int64_t rows_of_block = rows.count <= kFew ? 1 : kAddNormWarpBlock / 32;
  return Launch(&row_kernels::AddNormKernel<InT, OutT, kGroups, kWhole, false>,
                dim3(Blocks(rows.count, rows_of_block)),
                dim3(static_cast<unsigned>(32 * rows_of_block)), 0, stream, rows);
}

template <bool kWhole, typename InT, typename OutT>
cudaError_t AddNormByBlocks(const AddNormRows<InT, OutT>& rows, Stream stream) {
  constexpr int kGroups = 4;
  SharedLayout shared;
  shared.Take<float>(2 * kMaxWarps);
  const unsigned warps = Blocks(rows.width, 32 * kGroups * kAddNormColumns);
  return Launch(&row_kernels::AddNormKernel<InT, OutT, kGroups, kWhole, true>,
                dim3(static_cast<unsigned>(rows.count)), dim3(32 * warps), shared.bytes(), stream,
                rows);
}

template <bool kWhole, typename InT, typename OutT>
cudaError_t LaunchAddNorm(const AddNormRows<InT, OutT>& rows, Stream stream) {
  const unsigned groups_of_lane = Blocks(rows.width, 32 * kAddNormColumns);
  if (groups_of_lane > 8) return AddNormByBlocks<kWhole>(rows, stream);
  if (groups_of_lane > 4) return AddNormByWarps<8, kWhole>(rows, stream);
  if (groups_of_lane > 2) return AddNormByWarps<4, kWhole>(rows, stream);
  return AddNormByWarps<2, kWhole>(rows, stream);
}

// ---- Maps

template <int kCount, bool kWhole, typename InT, typename OutT>
cudaError_t LaunchMap(const MappedRows<InT, OutT>& rows, Stream stream) {
  const int64_t items = int64_t{Blocks(rows.count, kMapRows)} * Blocks(rows.width, kCount);
  if (items > kMostThreads) return cudaErrorInvalidValue;
  return Launch(&row_kernels::MapKernel<InT, OutT, kCount, kWhole>, dim3(Blocks(items, kMapBlock)),
                dim3(kMapBlock), 0, stream, rows);
}

int Map(In x, const int64_t* index, const float* bias, Activation activation, int64_t count,
        int64_t width, Out y, Stream stream) {
  if (count < 0 || width <= 0 || width > kMaxGrid) return cudaErrorInvalidValue;
  return WithTypes(x.type, y.type, [&](auto in, auto out) {
    using InT = typename decltype(in)::Number;
    using OutT = typename decltype(out)::Number;
    const MappedRows<InT, OutT> rows = {static_cast<const InT*>(x.data),
                                        x.stride,
                                        index,
                                        bias,
                                        activation,
                                        static_cast<OutT*>(y.data),
                                        y.stride,
                                        count,
                                        static_cast<int>(width)};
    constexpr int kCount = 16 / sizeof(InT);  // 16 bytes are read at a time
    const bool whole = InGroups(x, width, kCount) && InGroups(y, width, kCount) &&
                       (bias == nullptr || InGroups(bias, width, 4));
    return whole ? LaunchMap<kCount, true>(rows, stream) : LaunchMap<kCount, false>(rows, stream);
  });
}

template <bool kWhole, typename T>
cudaError_t LaunchEmbed(const EmbedRows<T>& rows, Stream stream) {
  const int64_t items = rows.count * Blocks(rows.width, kEmbedColumns);
  if (items > kMostThreads) return cudaErrorInvalidValue;
  return Launch(&row_kernels::EmbedKernel<T, kWhole>, dim3(Blocks(items, kEmbedBlock)),
                dim3(kEmbedBlock), 0, stream, rows);
}

}  // namespace

int Embed(const EmbedModel& model, const int32_t* tokens, const int32_t* slots,
          const int64_t* positions, const int32_t* last_sampled, int64_t count, float* x,
          Stream stream) {
  const int64_t width = model.width;
  if (count < 0 || width <= 0 || width > kMaxGrid) return cudaErrorInvalidValue;
  const bool whole =
      InGroups(In{model.table, model.type, width}, width, kEmbedColumns) &&
      InGroups(x, width, kEmbedColumns) &&
      (model.positions == nullptr || InGroups(model.positions, width, kEmbedColumns));
  const auto run = [&](auto type) {
    using T = typename decltype(type)::Number;
    const EmbedRows<T> rows = {static_cast<const T*>(model.table),
                               model.positions,
                               model.frequencies,
                               tokens,
                               slots,
                               positions,
                               last_sampled,
                               x,
                               count,
                               static_cast<int>(width),
                               model.scale};
    return whole ? LaunchEmbed<true>(rows, stream) : LaunchEmbed<false>(rows, stream);
  };
  switch (model.type) {
    case Number::kFp32:
      return run(Type<float>());
    case Number::kBf16:
      return run(Type<Bf16>());
    case Number::kFp16:
      return run(Type<Fp16>());
  }
  return cudaErrorInvalidValue;
}

int AddNorm(const NormModel& norm, float* x, In branch, const float* branch_bias, int64_t count,
            Out y, Stream stream) {
  const int64_t width = norm.width;
  if (count < 0 || count > kMaxGrid || width <= 0 || width > 16 * kAddNormMaxBlock) {
    return cudaErrorInvalidValue;
  }
  if (branch.data == nullptr) branch.type = Number::kFp32;
  if (y.data == nullptr) y.type = branch.type;
  return WithTypes(branch.type, y.type, [&](auto in, auto out) {
    using InT = typename decltype(in)::Number;
    using OutT = typename decltype(out)::Number;
    const AddNormRows<InT, OutT> rows = {x,
                                         static_cast<const InT*>(branch.data),
                                         branch.stride,
                                         branch_bias,
                                         norm.weight,
                                         norm.bias,
                                         static_cast<OutT*>(y.data),
                                         y.stride,
                                         count,
                                         static_cast<int>(width),
                                         norm.eps};
    constexpr int kColumns = kAddNormColumns;
    const bool whole = InGroups(x, width, kColumns) &&
                       (branch.data == nullptr || InGroups(branch, width, kColumns)) &&
                       (branch_bias == nullptr || InGroups(branch_bias, width, kColumns)) &&
                       (y.data == nullptr ||
                        (InGroups(y, width, kColumns) && InGroups(norm.weight, width, kColumns) &&
                         InGroups(norm.bias, width, kColumns)));
    return whole ? LaunchAddNorm<true>(rows, stream) : LaunchAddNorm<false>(rows, stream);
  });
}

int BiasActivation(In x, const float* bias, Activation activation, int64_t count, int64_t width,
                   Out y, Stream stream) {
  return Map(x, nullptr, bias, activation, count, width, y, stream);
}

int GatherRows(In x, const int64_t* index, int64_t count, int64_t width, Out y, Stream stream) {
  return Map(x, index, nullptr, Activation::kNone, count, width, y, stream);
}

}  // namespace aft::kernels::cuda
