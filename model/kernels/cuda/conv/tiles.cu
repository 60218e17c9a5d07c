#include "model/kernels/cuda/conv/conv.h"
#include "model/kernels/cuda/conv/sums_kernel.cuh"
#include "model/kernels/cuda/conv/tiles.cuh"

namespace aft::kernels::cuda {
namespace {

ConvTileArgs MakeArgs(const ConvModel& model, const ChunkRows& rows, In packed, Out y,
                      float* workspace) {
  const ConvStateLayout layout = model.layout();
  ConvTileArgs args = {ConvDims(model)};
  args.causal = model.causal;
  args.grid = model.grid;
  args.rows = rows;
  args.packed = packed;
  args.k_ring = layout.KRing();
  args.v_ring = layout.VRing();
  args.y = y;
  args.sums = workspace;
  args.carry = workspace + ConvWorkspaceFloats(model, rows.rows, rows.tokens) / 2;
  return args;
}

template <int kVec>
int StartSums(const ConvTileArgs& args, unsigned places, Stream stream) {
  SharedLayout layout;
  const ConvSumsShared shared(layout, kVec);
  const dim3 blocks(places, Blocks(args.dims.hid, kConvSumsChannels),
                    static_cast<unsigned>(args.sides()));
  return Launch(ConvSumsKernel<kVec>, blocks, kConvSumsThreads, layout.bytes(), stream, args);
}

template <typename Y>
int StartAll(ConvTileArgs& args, Stream stream) {
  constexpr int kVec = 4;  // numbers that are read at a time
  const ConvDims& dims = args.dims;
  args.packed_aligned = Aligned16<float>(args.packed.data, args.packed.stride, dims.hid) &&
                        Aligned16<float>(args.packed.data, 0, dims.values());
  args.y_aligned = Aligned16<Y>(args.y.data, args.y.stride, dims.hid);
  const int64_t ring_row = dims.hid * (dims.bf16_ring ? 2 : 4);
  args.ring_aligned =
      Aligned16<float>(args.state.base, args.state.slot_stride, args.v_ring) && ring_row % 16 == 0;

  const auto places = static_cast<unsigned>(ConvPlaces(args.rows.rows, args.rows.tokens));
  int error = args.packed_aligned && dims.hid % kVec == 0 ? StartSums<kVec>(args, places, stream)
                                                          : StartSums<1>(args, places, stream);
  if (error != cudaSuccess) return error;
  const dim3 carry_blocks(Blocks(dims.hid + dims.heads, kConvSumsThreads),
                          static_cast<unsigned>(args.rows.rows),
                          static_cast<unsigned>(args.sides()));
  error = Launch(ConvCarryKernel, carry_blocks, kConvSumsThreads, 0, stream, args);
  if (error != cudaSuccess) return error;
  error = ConvOutputs(args, places, stream);
  if (error != cudaSuccess || args.rows.slot == nullptr) return error;
  const dim3 store_blocks(static_cast<unsigned>(dims.taps), static_cast<unsigned>(args.rows.rows));
  return Launch(ConvStoreKernel, store_blocks, kConvSumsThreads, 0, stream, args);
}

int Start(ConvTileArgs& args, Stream stream) {
  return ForOutput(args.packed.type, args.y.type,
                   [&](auto y) { return StartAll<decltype(y)>(args, stream); });
}

}  // namespace

int64_t ConvWorkspaceFloats(const ConvModel& model, int64_t rows, int64_t tokens) {
  return 2 * ConvPlaces(rows, tokens) * (model.causal ? 1 : 2) * (model.hid + 2 * model.heads);
}

int ConvPrefill(const ConvModel& model, const ChunkRows& chunks, In packed, State state, Out y,
                float* workspace, Stream stream) {
  if (!IsValid(model) || !model.causal) return cudaErrorInvalidValue;
  ConvTileArgs args = MakeArgs(model, chunks, packed, y, workspace);
  args.state = state;
  return Start(args, stream);
}

int ConvEncode(const ConvModel& model, const Texts& texts, In packed, Out y, float* workspace,
               Stream stream) {
  if (!IsValid(model) || (model.grid && texts.grid_width <= 0)) return cudaErrorInvalidValue;
  ConvTileArgs args = MakeArgs(model, texts.rows(), packed, y, workspace);
  if (!model.causal) args.dims.bf16_ring = false;
  args.mask = texts.mask;
  args.grid_width = texts.grid_width;
  return Start(args, stream);
}

}  // namespace aft::kernels::cuda
