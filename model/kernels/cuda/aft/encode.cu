#include "model/kernels/cuda/aft/encode_kernel.cuh"
#include "model/kernels/cuda/aft/prefill.h"
#include "model/kernels/cuda/aft/tile_kernel.cuh"

namespace aft::kernels::cuda {
namespace {

constexpr unsigned kFoldThreads = 128;

dim3 FoldGrid(const AftArgs& args) {
  return {static_cast<unsigned>(args.rows.rows), Blocks(args.model.hid, kFoldThreads)};
}

// AFT-simple: one sum over all tokens of a text.
int WholeSimple(const AftArgs& args, int64_t tiles, Stream stream) {
  int error = AftScanOf(args, AftScan::kSums, tiles, stream);
  if (error == cudaSuccess) {
    error = Launch(AftTotalKernel, FoldGrid(args), dim3(kFoldThreads), 0, stream, args);
  }
  if (error == cudaSuccess) error = AftScanOf(args, AftScan::kGate, tiles, stream);
  return error;
}

template <bool kVector>
cudaError_t WholeWindows(const AftArgs& args, int64_t tiles, Stream stream) {
  const AftWarps sums(args.model.hid);
  cudaError_t error =
      Launch(AftSumsKernel<kVector>, dim3(static_cast<unsigned>(tiles), sums.blocks),
             dim3(sums.threads), 0, stream, args);
  if (error == cudaSuccess) {
    error = Launch(AftOutsideKernel, FoldGrid(args), dim3(kFoldThreads), 0, stream, args);
  }
  if (error != cudaSuccess) return error;
  const AftWarps warps(args.model.hid, kAftTileWarps);
  return Launch(AftTileKernel<kVector, 2, false, false>,
                dim3(static_cast<unsigned>(tiles), warps.blocks), dim3(warps.threads),
                warps.SharedBytes(2), stream, args);
}

}  // namespace

int64_t AftEncodeWorkspaceFloats(const AftModel& model, int64_t sequences, int64_t tokens) {
  if (model.causal) return AftPrefillWorkspaceFloats(model, sequences, tokens);
  return AftTiles(sequences, tokens) * (model.window == 0 ? 1 : 3) * 3 * model.hid;
}

int AftEncode(const AftModel& model, const Texts& texts, In qkv, Out y, float* workspace,
              Stream stream) {
  if (!AreMixerTypes(qkv.type, y.type) || (!model.causal && model.prefix_block > 0))
    return cudaErrorInvalidValue;
  if (texts.sequences == 0 || texts.tokens == 0) return cudaSuccess;
  AftArgs args;
  args.model = model;
  args.rows = texts.rows();
  args.mask = texts.mask;
  args.qkv = qkv;
  args.y = y;
  args.sums = workspace;
  args.triples = static_cast<int>(model.layout().prefixes());
  if (model.causal) return AftCausal(args, stream);

  const int64_t tiles = AftTiles(texts.sequences, texts.tokens);
  if (model.window == 0) return WholeSimple(args, tiles, stream);
  args.triples = 3;
  args.model.ring = Number::kFp32;  // there is no ring, so nothing is rounded
  return AftAligned(args, 4) ? WholeWindows<true>(args, tiles, stream)
                             : WholeWindows<false>(args, tiles, stream);
}

}  // namespace aft::kernels::cuda
