#pragma once

#include <cstdint>
#include <vector>

#include "model/config/config.h"
#include "model/kernels/linear/linear.h"
#include "model/layers/weights.h"

namespace aft {

// x = embed[token] * scale + position(t). position(t) is nothing, a learned row, or the sines and
// cosines of Vaswani et al. 2017: columns 2i and 2i + 1 = sin and cos of t / 10000^(2i/d).
// Immutable and thread-safe.
class Embedding {
 public:
  // Reads "embed.weight" from `table`, which is packed with the vocabulary as its outputs (a tied
  // head is the same weight) and is borrowed. Copies "position.weight" into `arena`. REQUIRES: they
  // passed CheckTensors.
  Embedding(const NetworkConfig& config, const WeightMap& tensors,
            const kernels::PackedWeight& table, WeightArena& arena);

  // x [count, d] += the positions of those tokens. This is Forward for vectors that exist already.
  void AddPositions(int64_t count, int64_t position, float* x) const;

  // The floats of positions_: the learned rows, or the waves that are computed in advance.
  static int64_t PositionFloats(const NetworkConfig& config);

  // The vectors [count, d] of tokens at positions position, position + 1, ... Sinusoidal ones are
  // exact at any position. REQUIRES: ids < vocab_size; learned positions < position_rows.
  void Forward(const int32_t* tokens, int64_t count, int64_t position, float* x) const;

 private:
  void AddWaves(int64_t position, float* x) const;

  int64_t width_;
  float scale_;
  PositionKind kind_;
  kernels::PackedWeight table_;
  // [position_rows_, d]: learned rows, or the first rows of the waves. Computing these each time
  // would cost a small model a few percent of its time.
  float* positions_ = nullptr;
  int64_t position_rows_ = 0;
  std::vector<double> frequencies_;  // radians per token, for each pair of columns
};

}  // namespace aft
