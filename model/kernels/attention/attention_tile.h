#pragma once

#include <cstdint>

#include "model/kernels/attention/attention.h"

namespace aft::kernels {

// What attention_tile-inl.h shares over all instruction sets.

// Queries of a tile, which read keys and values from the cache together.
inline constexpr int64_t kTileRows = 48;
// Keys of one step of the online softmax.
inline constexpr int64_t kKeyGroup = 2 * kKeyBlock;
// The score of a key that is not there: finite, because -inf minus -inf is NaN.
inline constexpr float kHiddenScore = -3e38F;

// Keys of one head that lie one after the other, from a border of a block on.
struct KeyRange {
  const float* k;     // [RoundUpToKeyBlock(keys) / 32, score_width, 32]
  const float* v;     // [keys, value_width]
  const float* bias;  // null or [RoundUp(keys, kKeyGroup)]: added to the scores
  int64_t seen;       // keys that the tile's first query sees; > 0
  int64_t step;       // further keys that each further query sees: 1 when causal, else 0
  // Instead of v, seen and step: what each query sees, when only the keys are common to them.
  const float* const* row_v = nullptr;
  const int64_t* row_seen = nullptr;

  int64_t Seen(int64_t row) const { return row_v == nullptr ? seen + row * step : row_seen[row]; }
};

// Floats of scratch of a tile of up to `rows` queries.
inline int64_t AttentionTileFloats(const AttentionParams& params, int64_t rows) {
  return RoundUpToKeyBlock(rows * (params.score_width + params.value_width + kKeyGroup + 16 + 2));
}

}  // namespace aft::kernels
