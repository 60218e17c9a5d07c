#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/product/quantize.h"
#include "model/kernels/cuda/product/quantize_kernel.cuh"

namespace aft::kernels::cuda {

int QuantizeRows(const QuantizeModel& model, In x, int64_t count, Out y, Stream stream) {
  constexpr int64_t kMost = 0x7FFFFFFF;
  const bool valid = count >= 0 && count <= kMost && model.width > 0 && model.width <= kMost &&
                     model.parts > 0 && model.parts <= kMaxRows && x.type == Number::kFp32 &&
                     IsQuantized(y.type) && y.stride % 16 == 0 && Aligned(y.data, 16);
  if (!valid) return cudaErrorInvalidValue;
  const bool whole = model.width % 4 == 0 && x.stride % 4 == 0 && Aligned(x.data, 16);
  SharedLayout shared;
  shared.Take<unsigned>(product::kQuantizeBlock / 32);
  return Launch(whole ? &product::QuantizeKernel<true> : &product::QuantizeKernel<false>,
                dim3(static_cast<unsigned>(count), static_cast<unsigned>(model.parts)),
                dim3(product::kQuantizeBlock), shared.bytes(), stream, model, x, y);
}

}  // namespace aft::kernels::cuda
