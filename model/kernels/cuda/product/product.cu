#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/product/kernel.cuh"
#include "model/kernels/cuda/product/product.h"
#include "model/kernels/cuda/product/tile_kernel.cuh"

namespace aft::kernels::cuda {
namespace product {
namespace {

constexpr int64_t kMostColumns = int64_t{1} << 30;  // kernels count them in 32 bits

bool IsInvalid(const ProductModel& model, In x, int64_t count, int64_t most) {
  return count < 0 || count > most || model.in <= 0 || model.in > kMostColumns || model.out <= 0 ||
         model.out > kMostColumns || !FitsFewRows(model, x);
}

template <int kWarps, int kHeld, typename T, typename OutT>
cudaError_t LaunchProduct(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  SharedLayout shared;
  shared.Take<float>(kWarps * kFewRows * kSumsStride);
  const auto kernel = count <= 8 ? &ProductKernel<kWarps, kHeld, true, T, OutT>
                                 : &ProductKernel<kWarps, kHeld, false, T, OutT>;
  return Launch(kernel, dim3(Blocks(model.out, kOuts)), dim3(32 * kWarps), shared.bytes(), stream,
                model, x, static_cast<int>(count), y);
}

// A block reads its part of the weights at once if `in` is at most kWarps * kHeld * kStep. 5: the
// columns of a bias after 1,024 others.
template <typename T, typename OutT>
cudaError_t LaunchProduct(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  if (model.in <= 32 * kStep<T>) return LaunchProduct<8, 4, T, OutT>(model, x, count, y, stream);
  if (model.in <= 40 * kStep<T>) return LaunchProduct<8, 5, T, OutT>(model, x, count, y, stream);
  return LaunchProduct<16, 8, T, OutT>(model, x, count, y, stream);
}

}  // namespace
}  // namespace product

bool FitsFewRows(const ProductModel& model, In x) {
  if (x.type != Number::kBf16 && !IsQuantized(x.type)) return false;
  const int64_t numbers = 16 / NumberBytes(x.type);
  return model.in % numbers == 0 && x.stride % numbers == 0 && Aligned(x.data, 16) &&
         Aligned(model.weight, 16);
}

int MultiplyFewRows(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  if (product::IsInvalid(model, x, count, kFewRows)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  if (IsQuantized(x.type)) {
    return y.type == Number::kFp32
               ? product::LaunchProduct<int8_t, float>(model, x, count, y, stream)
               : cudaErrorInvalidValue;
  }
  if (y.type == Number::kFp32) {
    return product::LaunchProduct<Bf16, float>(model, x, count, y, stream);
  }
  if (y.type == Number::kBf16) {
    return product::LaunchProduct<Bf16, Bf16>(model, x, count, y, stream);
  }
  return cudaErrorInvalidValue;
}

int MultiplyInt8(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  const bool valid = !product::IsInvalid(model, x, count, kMaxRows * product::kTileRows) &&
                     IsQuantized(x.type) && y.type == Number::kFp32;
  if (!valid) return cudaErrorInvalidValue;
  if (count <= kFewRows) return MultiplyFewRows(model, x, count, y, stream);
  SharedLayout shared;
  shared.Take<int8_t>(product::kStages * product::kStageBytes);
  return Launch(&product::TileKernel,
                dim3(Blocks(model.out, product::kTileOuts), Blocks(count, product::kTileRows)),
                dim3(product::kTileBlock), shared.bytes(), stream, model, x, count, y);
}

}  // namespace aft::kernels::cuda
