#include "model/kernels/cuda/conv/conv.h"
#include "model/kernels/cuda/conv/sums_kernel.cuh"
#include "model/kernels/cuda/conv/tiles.cuh"

namespace aft::kernels::cuda {
namespace {

int64_t WorkspaceFloats(const ConvModel& model, int64_t rows, int64_t tokens) {
  return 2 * ConvPlaces(rows, tokens) * (model.causal ? 1 : 2) * (model.hid + 2 * model.heads);
}

ConvTileArgs MakeArgs(const ConvModel& model, In packed, Out y, int64_t rows, int64_t tokens,
                      float* workspace) {
  const ConvStateLayout layout = model.layout();
  ConvTileArgs args = {ConvDims(model)};
  args.causal = model.causal;
  args.grid = model.grid;
  args.rows = rows;
  args.packed = packed.data;
  args.packed_stride = packed.stride;
  args.k_ring = layout.KRing();
  args.v_ring = layout.VRing();
  args.y = y.data;
  args.y_stride = y.stride;
  args.sums = workspace;
  args.carry = workspace + WorkspaceFloats(model, rows, tokens) / 2;
  return args;
}

template <typename T, int kVec>
int StartSums(const ConvTileArgs& args, unsigned places, Stream stream) {
  SharedLayout layout;
  const ConvSumsShared shared(layout, kVec);
  const dim3 blocks(places, Blocks(args.dims.hid, kConvSumsChannels),
                    static_cast<unsigned>(args.sides()));
  return Launch(ConvSumsKernel<T, kVec>, blocks, kConvSumsThreads, layout.bytes(), stream, args);
}

template <typename T, typename Y>
int StartAll(ConvTileArgs& args, Number in, Number out, int64_t tokens, Stream stream) {
  constexpr auto kVec = static_cast<int>(16 / sizeof(T));
  const ConvDims& dims = args.dims;
  args.packed_aligned = Aligned16<T>(args.packed, args.packed_stride, dims.hid) &&
                        Aligned16<T>(args.packed, 0, dims.values());
  args.y_aligned = Aligned16<Y>(args.y, args.y_stride, dims.hid);
  const int64_t ring_row = dims.hid * (dims.bf16_ring ? 2 : 4);
  args.ring_aligned =
      Aligned16<float>(args.state, args.slot_stride, args.v_ring) && ring_row % 16 == 0;

  const auto places = static_cast<unsigned>(ConvPlaces(args.rows, tokens));
  int error = args.packed_aligned && dims.hid % kVec == 0 ? StartSums<T, kVec>(args, places, stream)
                                                          : StartSums<T, 1>(args, places, stream);
  if (error != cudaSuccess) return error;
  const dim3 carry_blocks(Blocks(dims.hid + dims.heads, kConvSumsThreads),
                          static_cast<unsigned>(args.rows), static_cast<unsigned>(args.sides()));
  error = Launch(ConvCarryKernel, carry_blocks, kConvSumsThreads, 0, stream, args);
  if (error != cudaSuccess) return error;
  error = ConvOutputs(args, in, out, places, stream);
  if (error != cudaSuccess || args.slot == nullptr) return error;
  const dim3 store_blocks(static_cast<unsigned>(dims.taps), static_cast<unsigned>(args.rows));
  return Launch(ConvStoreKernel<T>, store_blocks, kConvSumsThreads, 0, stream, args);
}

int Start(ConvTileArgs& args, Number in, Number out, int64_t tokens, Stream stream) {
  return ForConvTypes(in, out, [&](auto t, auto y) {
    return StartAll<decltype(t), decltype(y)>(args, in, out, tokens, stream);
  });
}

}  // namespace

int64_t ConvPrefillWorkspaceFloats(const ConvModel& model, int64_t rows, int64_t tokens) {
  return WorkspaceFloats(model, rows, tokens);
}

int ConvPrefill(const ConvModel& model, const ChunkRows& chunks, In packed, State state, Out y,
                float* workspace, Stream stream) {
  if (!IsValid(model) || !model.causal) return cudaErrorInvalidValue;
  ConvTileArgs args = MakeArgs(model, packed, y, chunks.rows, chunks.tokens, workspace);
  args.slot = chunks.slot;
  args.position = chunks.position;
  args.offset = chunks.offset;
  args.state = state.base;
  args.slot_stride = state.slot_stride;
  return Start(args, packed.type, y.type, chunks.tokens, stream);
}

int64_t ConvEncodeWorkspaceFloats(const ConvModel& model, int64_t sequences, int64_t tokens) {
  return WorkspaceFloats(model, sequences, tokens);
}

int ConvEncode(const ConvModel& model, const Texts& texts, In packed, Out y, float* workspace,
               Stream stream) {
  if (!IsValid(model) || (model.grid && texts.grid_width <= 0)) return cudaErrorInvalidValue;
  ConvTileArgs args = MakeArgs(model, packed, y, texts.sequences, texts.tokens, workspace);
  if (!model.causal) args.dims.bf16_ring = false;
  args.offset = texts.offset;
  args.mask = texts.mask;
  args.grid_width = texts.grid_width;
  return Start(args, packed.type, y.type, texts.tokens, stream);
}

}  // namespace aft::kernels::cuda
