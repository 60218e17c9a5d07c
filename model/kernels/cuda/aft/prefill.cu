#include <algorithm>
#include <cstdint>

#include "model/kernels/cuda/aft/prefill.h"
#include "model/kernels/cuda/aft/scan_kernel.cuh"
#include "model/kernels/cuda/aft/tile_kernel.cuh"

namespace aft::kernels::cuda {
namespace {

// One thread per channel, or one block per channel group, goes through a whole row when these are
// enough to fill the device (132 multiprocessors and more), because keys and values are then read
// once. Otherwise all tiles are processed in parallel, after a pass that computes their sums. Both
// give the same bits.
constexpr int64_t kScanChannels = 65536;
constexpr int64_t kTileBlocks = 192;
// Rows up to this length are always processed in that way, which saves two launches.
constexpr int64_t kShort = 64;

constexpr unsigned kScanThreads = 128;

template <typename OutT, int N>
cudaError_t ScanAs(const AftArgs& args, AftScan scan, int64_t blocks, Stream stream) {
  const int64_t threads = Blocks(args.model.hid, N);
  const unsigned block = std::min(Blocks(threads, 32) * 32, kScanThreads);
  const dim3 grid(static_cast<unsigned>(blocks), Blocks(threads, block));
  switch (scan) {
    case AftScan::kSums:
      return Launch(AftScanKernel<OutT, N, AftScan::kSums>, grid, dim3(block), 0, stream, args);
    case AftScan::kTile:
      return Launch(AftScanKernel<OutT, N, AftScan::kTile>, grid, dim3(block), 0, stream, args);
    case AftScan::kRow:
      return Launch(AftScanKernel<OutT, N, AftScan::kRow>, grid, dim3(block), 0, stream, args);
    case AftScan::kGate:
      return Launch(AftScanKernel<OutT, N, AftScan::kGate>, grid, dim3(block), 0, stream, args);
  }
  return cudaErrorInvalidValue;
}

// Computes the sums before every tile, in the workspace, and advances the prefix of the state.
cudaError_t Carry(const AftArgs& args, Stream stream) {
  constexpr unsigned kThreads = 128;
  const dim3 grid(static_cast<unsigned>(args.rows.rows), Blocks(args.model.hid, kThreads));
  return args.triples == 2 ? Launch(AftCarryKernel<2>, grid, dim3(kThreads), 0, stream, args)
                           : Launch(AftCarryKernel<1>, grid, dim3(kThreads), 0, stream, args);
}

template <bool kVector, int kPrefixes, bool kWalks>
cudaError_t Tiles(const AftArgs& args, int64_t blocks, Stream stream) {
  const AftWarps warps(args.model.hid, kAftTileWarps);
  return Launch(AftTileKernel<kVector, kPrefixes, true, kWalks>,
                dim3(static_cast<unsigned>(blocks), warps.blocks), dim3(warps.threads),
                warps.SharedBytes(kPrefixes), stream, args);
}

template <bool kVector>
cudaError_t SumAndCarry(const AftArgs& args, int64_t tiles, Stream stream) {
  const AftWarps warps(args.model.hid);
  const cudaError_t error =
      Launch(AftSumsKernel<kVector>, dim3(static_cast<unsigned>(tiles), warps.blocks),
             dim3(warps.threads), 0, stream, args);
  return error != cudaSuccess ? error : Carry(args, stream);
}

template <typename Ring, int N>
cudaError_t WriteRing(const AftArgs& args, Stream stream) {
  const int64_t threads = Blocks(args.model.hid, N);
  return Launch(AftRingKernel<Ring, N>,
                dim3(static_cast<unsigned>(args.rows.rows),
                     Blocks(std::min(args.rows.longest, args.model.window - 1), kAftRingTokens)),
                dim3(std::min(Blocks(threads, 32) * 32, 256U)), 0, stream, args);
}

template <int N>
cudaError_t WriteRingOf(const AftArgs& args, Stream stream) {
  return args.model.ring == Number::kBf16 ? WriteRing<Bf16, N>(args, stream)
                                          : WriteRing<float, N>(args, stream);
}

cudaError_t Windows(const AftArgs& args, Stream stream) {
  const ChunkRows& rows = args.rows;
  const bool vector = AftAligned(args, 4);
  const int64_t tiles = AftTiles(rows.rows, rows.tokens);
  const bool walks = args.triples == 1 && vector &&
                     (rows.longest <= kShort ||
                      rows.tokens * AftWarps(args.model.hid).blocks >= kTileBlocks * rows.longest);
  cudaError_t error = cudaSuccess;
  if (walks) {
    error = Tiles<true, 1, true>(args, rows.rows, stream);
  } else {
    error =
        vector ? SumAndCarry<true>(args, tiles, stream) : SumAndCarry<false>(args, tiles, stream);
    if (error != cudaSuccess) return error;
    if (args.triples == 2) {
      error = vector ? Tiles<true, 2, false>(args, tiles, stream)
                     : Tiles<false, 2, false>(args, tiles, stream);
    } else {
      error = vector ? Tiles<true, 1, false>(args, tiles, stream)
                     : Tiles<false, 1, false>(args, tiles, stream);
    }
  }
  if (error != cudaSuccess || args.state.base == nullptr || args.model.window <= 1) return error;
  return AftAligned(args, 2) ? WriteRingOf<2>(args, stream) : WriteRingOf<1>(args, stream);
}

int Simple(const AftArgs& args, Stream stream) {
  const ChunkRows& rows = args.rows;
  if (rows.longest <= kShort || rows.tokens * args.model.hid >= kScanChannels * rows.longest) {
    return AftScanOf(args, AftScan::kRow, rows.rows, stream);
  }
  const int64_t tiles = AftTiles(rows.rows, rows.tokens);
  int error = AftScanOf(args, AftScan::kSums, tiles, stream);
  if (error == cudaSuccess) error = Carry(args, stream);
  if (error == cudaSuccess) error = AftScanOf(args, AftScan::kTile, tiles, stream);
  return error;
}

}  // namespace

AftWarps::AftWarps(int64_t hid, int64_t most) {
  const int64_t warps = std::min<int64_t>(Blocks(hid, kAftWarpChannels), most);
  threads = static_cast<unsigned>(warps) * 32;
  blocks = Blocks(hid, warps * kAftWarpChannels);
}

size_t AftWarps::SharedBytes(int prefixes) const {
  SharedLayout shared;
  const AftTileShared counted(shared, prefixes * kAftWarpChannels * static_cast<int>(threads) / 32);
  return shared.bytes();
}

bool AftAligned(const AftArgs& args, int64_t n) {
  const In& qkv = args.qkv;
  return args.model.hid % n == 0 && qkv.stride % n == 0 && args.y.stride % n == 0 &&
         Aligned(qkv.data, n * NumberBytes(qkv.type)) &&
         Aligned(args.y.data, n * NumberBytes(args.y.type));
}

int AftScanOf(const AftArgs& args, AftScan scan, int64_t blocks, Stream stream) {
  return ForOutput(args.qkv.type, args.y.type, [&](auto y) {
    using OutT = decltype(y);
    return AftAligned(args, kAftScanChannels)
               ? ScanAs<OutT, kAftScanChannels>(args, scan, blocks, stream)
               : ScanAs<OutT, 1>(args, scan, blocks, stream);
  });
}

int AftCausal(const AftArgs& args, Stream stream) {
  if (args.model.window == 0 && args.model.prefix_block == 0) return Simple(args, stream);
  return Windows(args, stream);
}

int64_t AftPrefillWorkspaceFloats(const AftModel& model, int64_t rows, int64_t tokens) {
  return AftTiles(rows, tokens) * model.layout().prefixes() * 3 * model.hid;
}

int AftPrefill(const AftModel& model, const ChunkRows& chunks, In qkv, State state, Out y,
               float* workspace, Stream stream) {
  if (!model.causal || !AreMixerTypes(qkv.type, y.type)) return cudaErrorInvalidValue;
  if (chunks.rows == 0 || chunks.tokens == 0) return cudaSuccess;
  AftArgs args;
  args.model = model;
  args.rows = chunks;
  args.qkv = qkv;
  args.state = state;
  args.k_ring = model.layout().KRing();
  args.v_ring = model.layout().VRing();
  args.y = y;
  args.sums = workspace;
  args.triples = static_cast<int>(model.layout().prefixes());
  return AftCausal(args, stream);
}

}  // namespace aft::kernels::cuda
