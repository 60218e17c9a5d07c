#pragma once

#include "model/kernels/cuda/aft/rows.cuh"

// What AftPrefill and AftEncode share on the host.
namespace aft::kernels::cuda {

// Whether n neighbouring channels may be accessed as one vector everywhere.
bool AftAligned(const AftArgs& args, int64_t n);
// The pairs of input and output that the kernels take.
bool AftTypes(In qkv, Out y);

// Warps of kAftWarpChannels channels in a block, and blocks for all channels.
struct AftWarps {
  explicit AftWarps(int64_t hid, int64_t most = 8);
  // Of AftTileKernel.
  size_t SharedBytes(int prefixes) const;

  unsigned threads;
  unsigned blocks;
};

// Causal rows, from state to state where there is one.
int AftCausal(const AftArgs& args, Stream stream);
int64_t AftCausalWorkspaceFloats(const AftModel& model, int64_t rows, int64_t tokens);

// AFT-simple, causal or not; `blocks` as the scan counts them.
int AftScanOf(const AftArgs& args, AftScan scan, int64_t blocks, Stream stream);

}  // namespace aft::kernels::cuda
