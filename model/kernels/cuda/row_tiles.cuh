#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// The rows of a batch, cut into tiles at positions that are multiples of a tile's tokens, so that a
// token's tile does not depend on the batch.
namespace aft::kernels::cuda {

// The tiles of all rows are in one list with gaps. The tiles of row r, whose first token is number
// `tokens` of the batch, begin at TilesBefore(tile, r, tokens). A row of n tokens has at most n div
// tile + 2 tiles, wherever it starts. `each` is that 2, or more if a row has further entries.
__host__ __device__ inline int64_t TilesBefore(int tile, int64_t rows, int64_t tokens,
                                               int each = 2) {
  return tokens / tile + each * rows;
}

// The row whose part of the list contains `index`. All lanes of a warp must call it.
__device__ inline int64_t RowOfTile(const ChunkRows& rows, int64_t index, int tile, int each = 2) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t low = 0;
  int64_t count = rows.rows;  // the row is among [low, low + count), which is searched in 32 parts
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
