#include <algorithm>

#include "model/kernels/cuda/conv/narrow_kernel.cuh"
#include "model/kernels/cuda/conv/output_kernel.cuh"
#include "model/kernels/cuda/conv/tiles.cuh"

namespace aft::kernels::cuda {
namespace {

constexpr size_t kMostShared = size_t{160} << 10;

// The most shared memory of a block that launches on the current device.
size_t MostShared() { return std::min(kMostShared, SharedLimit()); }

template <typename Y, int kChannels, bool kGrid>
int StartMatrix(const ConvTileArgs& args, unsigned places, Stream stream) {
  SharedLayout layout;
  const ConvOutputShared<kChannels, kGrid> shared(layout, args);
  if (layout.bytes() > kMostShared) return cudaErrorInvalidConfiguration;
  const int64_t parts = int64_t{Blocks(args.dims.width, kChannels)} * args.dims.heads;
  if (parts > kMaxRows) return cudaErrorInvalidValue;  // more than a grid can have
  const dim3 blocks(places, static_cast<unsigned>(parts));
  return Launch(ConvOutputKernel<Y, kChannels, kGrid>, blocks, kConvOutputThreads, layout.bytes(),
                stream, args);
}

template <int kChannels>
bool GridFits(const ConvTileArgs& args, size_t most) {
  SharedLayout layout;
  const ConvOutputShared<kChannels, true> shared(layout, args);
  return layout.bytes() <= most;
}

// Heads narrower than this use ConvNarrowKernel, if it has enough shared memory.
constexpr int kMatrixWidth = 16;

template <typename Y>
int StartOutputs(const ConvTileArgs& args, unsigned places, Stream stream) {
  if (args.dims.width < kMatrixWidth && !args.grid) {
    SharedLayout layout;
    const ConvNarrowShared shared(layout, args.dims);
    if (layout.bytes() <= MostShared()) {
      const dim3 blocks(places, Blocks(args.dims.hid, kConvNarrowChannels));
      return Launch(ConvNarrowKernel<Y>, blocks, kConvNarrowThreads, layout.bytes(), stream, args);
    }
  }
  if (args.dims.width <= 32) {
    return args.grid ? StartMatrix<Y, 32, true>(args, places, stream)
                     : StartMatrix<Y, 32, false>(args, places, stream);
  }
  return args.grid ? StartMatrix<Y, 64, true>(args, places, stream)
                   : StartMatrix<Y, 64, false>(args, places, stream);
}

}  // namespace

int64_t ConvMaxGridWidth(const ConvModel& model) {
  ConvTileArgs args = {ConvDims(model)};
  const size_t most = MostShared();
  const auto fits = [&](int64_t width) {
    args.grid_width = width;
    return args.dims.width <= 32 ? GridFits<32>(args, most) : GridFits<64>(args, most);
  };
  int64_t width = 0;
  while (fits(width + 1)) ++width;
  return width;
}

int ConvOutputs(const ConvTileArgs& args, unsigned places, Stream stream) {
  return ForOutput(args.packed.type, args.y.type,
                   [&](auto y) { return StartOutputs<decltype(y)>(args, places, stream); });
}

}  // namespace aft::kernels::cuda
