#include "model/kernels/cuda/wkv/blend.h"
#include "model/kernels/cuda/wkv/blend_kernel.cuh"

namespace aft::kernels::cuda {

namespace wkv {
namespace {

template <typename Each>
int ForEach(int64_t count, int64_t width, const Each& each, Stream stream) {
  constexpr int64_t kMost = 0xFFFFFFFF - kEachBlock;  // the kernel counts in 32 bits
  if (count < 0 || width <= 0 || width > kMost || count > kMost / width) {
    return cudaErrorInvalidValue;
  }
  return Launch(EachKernel<Each>, dim3(Blocks(count * width, kEachBlock)), dim3(kEachBlock), 0,
                stream, count, static_cast<unsigned>(width), each);
}

}  // namespace
}  // namespace wkv

int ShiftTokens(const ShiftModel& model, const TokenRows& rows, const float* x, State state, Out y,
                int64_t part_rows, Stream stream) {
  const wkv::Shift shift = {model, rows, x, state, y, part_rows};
  const int error = wkv::ForEach(rows.tokens, model.width, shift, stream);
  if (error != cudaSuccess || rows.single) return error;
  const wkv::KeepLast keep = {rows, x, model.width, state};
  return wkv::ForEach(rows.tokens, model.width, keep, stream);
}

int ApplyToColumns(const float* x, const ColumnFunction* function, int64_t count, int64_t width,
                   Out y, Stream stream) {
  return wkv::ForEach(count, width, wkv::Columns{x, function, width, y}, stream);
}

int MixValues(float* values, int64_t stride, const float* gate, int64_t count, int64_t width,
              float* first, Stream stream) {
  return wkv::ForEach(count, width, wkv::Values{values, stride, gate, width, first}, stream);
}

int MultiplyBySigmoid(const float* gate, int64_t count, int64_t width, float* y, Stream stream) {
  return wkv::ForEach(count, width, wkv::Gate{gate, width, y}, stream);
}

}  // namespace aft::kernels::cuda
