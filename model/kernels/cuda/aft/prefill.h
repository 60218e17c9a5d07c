#pragma once

#include "model/kernels/cuda/aft/rows.cuh"

// Host code that AftPrefill and AftEncode share.
namespace aft::kernels::cuda {

// Whether n neighbouring channels may be accessed as one vector everywhere.
bool AftAligned(const AftArgs& args, int64_t n);

// The threads of a block, for warps of kAftWarpChannels channels, and the blocks for all channels.
struct AftWarps {
  explicit AftWarps(int64_t hid, int64_t most = 8);
  // The shared memory of AftTileKernel.
  size_t SharedBytes(int prefixes) const;

  unsigned threads;
  unsigned blocks;
};

// Computes causal rows. They begin from the state and update it if there is one.
int AftCausal(const AftArgs& args, Stream stream);

// Runs AFT-simple, causal or not. `blocks` is the number of rows or tiles, as `scan` requires.
int AftScanOf(const AftArgs& args, AftScan scan, int64_t blocks, Stream stream);

}  // namespace aft::kernels::cuda
