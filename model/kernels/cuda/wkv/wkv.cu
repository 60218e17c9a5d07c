#include "model/kernels/cuda/wkv/wkv.h"
#include "model/kernels/cuda/wkv/wkv4_kernel.cuh"
#include "model/kernels/cuda/wkv/wkv7_kernel.cuh"

namespace aft::kernels::cuda {

namespace wkv {
namespace {

constexpr int64_t kMostChannels = int64_t{1} << 24;

template <int kWidth, typename T, typename Y>
int LaunchWkv7(const Wkv7Params& params, const ChunkRows& rows, In packed, State state, Out y,
               Stream stream) {
  const auto width = static_cast<int>(params.head_width());
  SharedLayout layout;
  const Wkv7Shared shared(layout, width, kWidth == 0);
  return Launch(Wkv7Kernel<kWidth, T, Y>,
                dim3(static_cast<unsigned>(params.heads), static_cast<unsigned>(rows.rows)),
                dim3(32 * Blocks(width, 32)), layout.bytes(), stream, params, width, rows, packed,
                state, y);
}

}  // namespace
}  // namespace wkv

int Wkv4Forward(const Wkv4Params& params, const ChunkRows& rows, In packed, State state, Out y,
                Stream stream) {
  if (params.hid <= 0 || params.hid > wkv::kMostChannels) return cudaErrorInvalidValue;
  return ForTypes(packed.type, y.type, [&](auto in, auto out) {
    return Launch(wkv::Wkv4Kernel<decltype(in), decltype(out)>,
                  dim3(Blocks(params.hid, wkv::kWkv4Block), static_cast<unsigned>(rows.rows)),
                  dim3(wkv::kWkv4Block), 0, stream, params, rows, packed, state, y);
  });
}

int Wkv7Forward(const Wkv7Params& params, const ChunkRows& rows, In packed, State state, Out y,
                Stream stream) {
  if (params.hid <= 0 || params.hid > wkv::kMostChannels || params.heads <= 0 ||
      params.hid % params.heads != 0) {
    return cudaErrorInvalidValue;
  }
  return ForTypes(packed.type, y.type, [&](auto in, auto out) {
    using T = decltype(in);
    using Y = decltype(out);
    return params.head_width() == 64
               ? wkv::LaunchWkv7<64, T, Y>(params, rows, packed, state, y, stream)
               : wkv::LaunchWkv7<0, T, Y>(params, rows, packed, state, y, stream);
  });
}

}  // namespace aft::kernels::cuda
