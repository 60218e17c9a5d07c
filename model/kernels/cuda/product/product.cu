#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/product/kernel.cuh"
#include "model/kernels/cuda/product/product.h"

namespace aft::kernels::cuda {
namespace product {
namespace {

constexpr int64_t kMostColumns = int64_t{1} << 30;  // kernels count them in 32 bits

template <int kWarps, int kHeld, typename OutT>
cudaError_t LaunchProduct(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  SharedLayout shared;
  shared.Take<float>(kWarps * kFewRows * kSumsStride);
  const auto kernel = count <= 8 ? &ProductKernel<kWarps, kHeld, true, OutT>
                                 : &ProductKernel<kWarps, kHeld, false, OutT>;
  return Launch(kernel, dim3(Blocks(model.out, kOuts)), dim3(32 * kWarps), shared.bytes(), stream,
                model, x, static_cast<int>(count), y);
}

// A block reads its part of the weights at once if `in` is at most kWarps * kHeld * kStep. 5: the
// columns of a bias after 1,024 others.
template <typename OutT>
cudaError_t LaunchProduct(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  if (model.in <= 1024) return LaunchProduct<8, 4, OutT>(model, x, count, y, stream);
  if (model.in <= 1280) return LaunchProduct<8, 5, OutT>(model, x, count, y, stream);
  return LaunchProduct<16, 8, OutT>(model, x, count, y, stream);
}

}  // namespace
}  // namespace product

bool FitsFewRows(const ProductModel& model, In x) {
  constexpr int64_t kNumbers = 8;  // bf16 numbers in 16 bytes
  return x.type == Number::kBf16 && model.in % kNumbers == 0 && x.stride % kNumbers == 0 &&
         Aligned(x.data, 16) && Aligned(model.weight, 16);
}

int MultiplyFewRows(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  const bool sizes = count >= 0 && count <= kFewRows && model.in > 0 &&
                     model.in <= product::kMostColumns && model.out > 0 &&
                     model.out <= product::kMostColumns;
  if (!sizes || !FitsFewRows(model, x)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  if (y.type == Number::kFp32) return product::LaunchProduct<float>(model, x, count, y, stream);
  if (y.type == Number::kBf16) return product::LaunchProduct<Bf16>(model, x, count, y, stream);
  return cudaErrorInvalidValue;
}

}  // namespace aft::kernels::cuda
