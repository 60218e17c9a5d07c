#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/rows/kernel.cuh"
#include "model/kernels/cuda/rows/rows.h"

namespace aft::kernels::cuda {

namespace rows {
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

// Calls fn(InT{}, OutT{}) for the number types of a launch.
template <class Fn>
int WithTypes(Number in, Number out, const Fn& fn) {
  if (in == Number::kFp16 && out == Number::kFp16) return fn(Fp16{}, Fp16{});
  if (in == Number::kBf16 && out == Number::kBf16) return fn(Bf16{}, Bf16{});
  return ForOutput(in, out, [&](auto y) { return fn(float{}, y); });
}

// ---- AddNorm. A row's threads and the order of its sums depend on the width alone.

template <typename OutT, int kGroups, bool kWhole, typename... Args>
cudaError_t LaunchAddNormBlocks(Stream stream, int64_t count, const NormModel& norm, Args... args) {
  SharedLayout shared;
  shared.Take<float>(2 * kMaxWarps);
  const unsigned warps = Blocks(norm.width, 32 * kGroups * kAddNormColumns);
  return Launch(&AddNormKernel<OutT, kGroups, kWhole, true>, dim3(static_cast<unsigned>(count)),
                dim3(32 * warps), shared.bytes(), stream, norm, args...);
}

template <typename OutT, bool kWhole, typename... Args>
cudaError_t LaunchAddNorm(Stream stream, int64_t count, const NormModel& norm, Args... args) {
  constexpr int64_t kWarpWidth = 512;    // at most; wider rows have a block
  constexpr int64_t kShortWidth = 4096;  // at most kMaxWarps with two groups of columns a thread
  if (norm.width > kShortWidth) {
    return LaunchAddNormBlocks<OutT, 4, kWhole>(stream, count, norm, args...);
  }
  if (norm.width > kWarpWidth) {
    return LaunchAddNormBlocks<OutT, 2, kWhole>(stream, count, norm, args...);
  }
  // Few rows get a block each, so that they spread over many multiprocessors.
  constexpr int64_t kFew = 512;
  const int64_t rows_of_block = count <= kFew ? 1 : kAddNormWarpBlock / 32;
  const auto kernel = norm.width > 256 ? &AddNormKernel<OutT, 4, kWhole, false>
                                       : &AddNormKernel<OutT, 2, kWhole, false>;
  return Launch(kernel, dim3(Blocks(count, rows_of_block)),
                dim3(static_cast<unsigned>(32 * rows_of_block)), 0, stream, norm, args...);
}

// ---- Maps

int Map(In x, const int64_t* index, const float* bias, Activation activation, int64_t count,
        int64_t width, Out y, Stream stream) {
  if (count < 0 || width <= 0 || width > kMaxGrid) return cudaErrorInvalidValue;
  return WithTypes(x.type, y.type, [&](auto in, auto out) {
    using InT = decltype(in);
    using OutT = decltype(out);
    constexpr int kCount = 16 / sizeof(InT);  // 16 bytes are read at a time
    const int64_t items = int64_t{Blocks(count, kMapRows)} * Blocks(width, kCount);
    if (items > kMostThreads) return cudaErrorInvalidValue;
    const bool whole = InGroups(x, width, kCount) && InGroups(y, width, kCount) &&
                       (bias == nullptr || InGroups(bias, width, 4));
    return Launch(
        whole ? &MapKernel<InT, OutT, kCount, true> : &MapKernel<InT, OutT, kCount, false>,
        dim3(Blocks(items, kMapBlock)), dim3(kMapBlock), 0, stream, x, index, bias, activation,
        count, static_cast<int>(width), y);
  });
}

}  // namespace
}  // namespace rows

int Embed(const EmbedModel& model, const int32_t* tokens, const int32_t* slots,
          const int64_t* positions, const int32_t* last_sampled, int64_t count, float* x,
          Stream stream) {
  const int64_t width = model.width;
  if (count < 0 || width <= 0 || width > rows::kMaxGrid) return cudaErrorInvalidValue;
  constexpr int kColumns = rows::kEmbedColumns;
  const int64_t items = count * Blocks(width, kColumns);
  if (items > rows::kMostThreads) return cudaErrorInvalidValue;
  const bool quantized = IsQuantized(model.type);
  const int64_t stride = quantized ? QuantizedColumns(width) : width;
  const bool whole =
      rows::InGroups(In{model.table, model.type, stride}, width, kColumns) &&
      rows::InGroups(x, width, kColumns) &&
      (model.positions == nullptr || rows::InGroups(model.positions, width, kColumns));
  const auto launch = [&](auto type, auto /*same*/) {
    using T = decltype(type);
    return Launch(whole ? &rows::EmbedKernel<T, true> : &rows::EmbedKernel<T, false>,
                  dim3(Blocks(items, rows::kEmbedBlock)), dim3(rows::kEmbedBlock), 0, stream, model,
                  tokens, slots, positions, last_sampled, count, x);
  };
  return quantized ? launch(int8_t{}, int8_t{}) : rows::WithTypes(model.type, model.type, launch);
}

int AddNorm(const NormModel& norm, float* x, In branch, const float* branch_bias, int64_t count,
            Out y, Stream stream) {
  const int64_t width = norm.width;
  static_assert(kMaxNormWidth == 16 * rows::kAddNormMaxBlock);
  if (count < 0 || count > rows::kMaxGrid || width <= 0 || width > kMaxNormWidth) {
    return cudaErrorInvalidValue;
  }
  if (branch.data == nullptr) branch.type = Number::kFp32;
  const auto launch = [&](auto out) {
    using OutT = decltype(out);
    const auto whole = [&](const auto& part) {
      return rows::InGroups(part, width, rows::kAddNormColumns);
    };
    const bool all = whole(x) && (branch.data == nullptr || whole(branch)) &&
                     (branch_bias == nullptr || whole(branch_bias)) && whole(y) &&
                     whole(norm.weight) && whole(norm.bias);
    return all ? rows::LaunchAddNorm<OutT, true>(stream, count, norm, x, branch, branch_bias, count,
                                                 y)
               : rows::LaunchAddNorm<OutT, false>(stream, count, norm, x, branch, branch_bias,
                                                  count, y);
  };
  if (!IsQuantized(y.type)) return ForOutput(branch.type, y.type, launch);
  const bool fits = branch.type == Number::kFp32 && y.stride % 16 == 0 && Aligned(y.data, 16);
  return fits ? launch(int8_t{}) : cudaErrorInvalidValue;
}

int BiasActivation(In x, const float* bias, Activation activation, int64_t count, int64_t width,
                   Out y, Stream stream) {
  return rows::Map(x, nullptr, bias, activation, count, width, y, stream);
}

int GatherRows(In x, const int64_t* index, int64_t count, int64_t width, Out y, Stream stream) {
  return rows::Map(x, index, nullptr, Activation::kNone, count, width, y, stream);
}

}  // namespace aft::kernels::cuda
