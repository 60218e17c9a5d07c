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

template <typename Tile>
cudaError_t LaunchTile(const ProductModel& model, In x, int64_t count, Out y, Stream stream) {
  SharedLayout shared;
  shared.Take<int8_t>(Tile::kStages * Tile::kStageBytes);
  return Launch(&TileKernel<Tile>, dim3(Blocks(model.out, Tile::kOuts), Blocks(count, Tile::kRows)),
                dim3(Tile::kThreads), shared.bytes(), stream, model, x, count, y);
}

using LargeTile = TileShape<128, 128, 64, 2, 4, 1>;
using MiddleTile = TileShape<64, 64, 128, 2, 2, 2>;
using SmallTile = TileShape<32, 32, 256, 2, 2, 2>;

// Whether the product has at least `blocks` tiles of this size, and more rows than half of one.
// The callers' numbers were measured on an H100 with its 132 multiprocessors.
template <typename Tile>
bool Occupies(const ProductModel& model, int64_t count, int64_t blocks) {
  return count > Tile::kRows / 2 &&
         int64_t{Blocks(model.out, Tile::kOuts)} * Blocks(count, Tile::kRows) >= blocks;
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
  const bool valid = !product::IsInvalid(model, x, count, kMaxRows * product::SmallTile::kRows) &&
                     IsQuantized(x.type) && y.type == Number::kFp32;
  if (!valid) return cudaErrorInvalidValue;
  if (count <= kFewRows) return MultiplyFewRows(model, x, count, y, stream);
  if (product::Occupies<product::LargeTile>(model, count, 96)) {
    return product::LaunchTile<product::LargeTile>(model, x, count, y, stream);
  }
  if (product::Occupies<product::MiddleTile>(model, count, 64)) {
    return product::LaunchTile<product::MiddleTile>(model, x, count, y, stream);
  }
  return product::LaunchTile<product::SmallTile>(model, x, count, y, stream);
}

}  // namespace aft::kernels::cuda
