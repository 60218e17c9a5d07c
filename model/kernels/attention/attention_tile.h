#pragma once

#include <cstdint>

#include "model/kernels/attention/attention.h"

namespace aft::kernels {

// Definitions of attention_tile-inl.h that are common to all instruction sets.

// The number of queries of a tile, which read keys and values from the cache together.
inline constexpr int64_t kTileRows = 48;
// The number of keys of one step of the online softmax.
inline constexpr int64_t kKeyGroup = 2 * kKeyBlock;
// Keys with this or a lower score have no weight. It is finite, because -inf minus -inf is NaN, and
// far below the scores of visible keys.
inline constexpr float kHiddenScore = -3e38F;

// Keys of one head that are stored one after the other, beginning at the start of a block.
struct KeyRange {
  const float* k;     // [RoundUpToKeyBlock(keys) / 32, score_width, 32]
  const float* v;     // [keys, value_width]
  const float* bias;  // null or [RoundUp(keys, kKeyGroup)]: added to the scores
  int64_t seen;       // keys that the tile's first query sees; > 0
  int64_t step;       // additional keys that each further query sees: 1 when causal, else 0
  // These replace v, seen and step when the queries share only the keys: each query's values, and
  // the number of keys that it sees.
  const float* const* row_v = nullptr;
  const int64_t* row_seen = nullptr;

  int64_t Seen(int64_t row) const { return row_v == nullptr ? seen + row * step : row_seen[row]; }
};

// The floats of scratch of a tile of up to `rows` queries.
inline int64_t AttentionTileFloats(const AttentionParams& params, int64_t rows) {
  return RoundUpToKeyBlock(rows * (params.score_width + params.value_width + kKeyGroup + 16 + 2));
}

}  // namespace aft::kernels
