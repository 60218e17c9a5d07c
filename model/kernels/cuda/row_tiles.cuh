#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// The rows of a batch, cut into tiles at positions that are multiples of a tile's tokens, so that a
// token's tile does not depend on the batch.
namespace aft::kernels::cuda {

// Tiles of all rows lie in one list with gaps: those of row r, whose first token is `tokens` of the
// batch, from TilesBefore(tile, r, tokens) on. A row of n tokens has at most n div tile + 2 tiles,
// wherever it starts; `each` is that 2, or more where a row has places beside its tiles.
__host__ __device__ inline int64_t TilesBefore(int tile, int64_t rows, int64_t tokens,
                                               int each = 2) {
  return tokens / tile + each * rows;
}

// The row whose part of the list holds `index`. All lanes of a warp.
__device__ inline int64_t RowOfTile(const ChunkRows& rows, int64_t index, int tile, int each = 2) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t low = 0;
  int64_t count = rows.rows;  // it is among rows [low, low + count): a search in 32 parts
  while (count > 1) {
    const int64_t step = (count + 31) / 32;
    const int64_t probe = low + lane * step;
    const bool reached =
        lane * step < count && TilesBefore(tile, probe, rows.offset[probe], each) <= index;
    const int last = 31 - __clz(static_cast<int>(__ballot_sync(0xFFFFFFFFU, reached ? 1 : 0)));
    low += last * step;
    count = min(step, count - last * step);
  }
  return low;
}

}  // namespace aft::kernels::cuda
