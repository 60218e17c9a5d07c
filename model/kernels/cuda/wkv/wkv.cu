#include "model/kernels/cuda/wkv/wkv.h"
#include "model/kernels/cuda/wkv/wkv4_kernel.cuh"
#include "model/kernels/cuda/wkv/wkv7_kernel.cuh"

namespace aft::kernels::cuda {

namespace wkv {
namespace {

constexpr int64_t kMostChannels = int64_t{1} << 24;

template <int kWidth, int kParts, typename Y>
int LaunchWkv7(const Wkv7Params& params, const ChunkRows& rows, In packed, State state, Out y,
               Stream stream) {
  using Block = Wkv7Block<kWidth, kParts>;
  const auto width = static_cast<int>(params.head_width());
  if (width > kWkv7MostWidth) return cudaErrorInvalidConfiguration;
  SharedLayout layout;
  const Wkv7Shared<kWidth, kParts> shared(layout, width);
  return Launch(Wkv7Kernel<kWidth, kParts, Y>,
                dim3(static_cast<unsigned>(params.heads), static_cast<unsigned>(rows.rows)),
                dim3(static_cast<unsigned>(Block::Threads(width))), layout.bytes(), stream, params,
                width, rows, packed, state, y);
}

template <typename Y>
int LaunchWkv7(const Wkv7Params& params, const ChunkRows& rows, In packed, State state, Out y,
               Stream stream) {
  if (params.head_width() != 64) {
    return LaunchWkv7<0, 1, Y>(params, rows, packed, state, y, stream);
  }
  const bool is_step = rows.offset == nullptr;
  const bool has_fours =
      Aligned(state.base, 16) && state.slot_stride % 4 == 0 && Aligned(params.initial, 16);
  return is_step || !has_fours ? LaunchWkv7<64, 1, Y>(params, rows, packed, state, y, stream)
                               : LaunchWkv7<64, 8, Y>(params, rows, packed, state, y, stream);
}

}  // namespace
}  // namespace wkv

int Wkv4Forward(const Wkv4Params& params, const ChunkRows& rows, In packed, State state, Out y,
                Stream stream) {
  if (params.hid <= 0 || params.hid > wkv::kMostChannels) return cudaErrorInvalidValue;
  return ForOutput(packed.type, y.type, [&](auto out) {
    using Y = decltype(out);
    return Launch(rows.offset == nullptr ? &wkv::Wkv4Kernel<1, Y> : &wkv::Wkv4Kernel<12, Y>,
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
  return ForOutput(packed.type, y.type, [&](auto out) {
    return wkv::LaunchWkv7<decltype(out)>(params, rows, packed, state, y, stream);
  });
}

}  // namespace aft::kernels::cuda
