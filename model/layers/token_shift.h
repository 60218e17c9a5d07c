#pragma once

#include <cstdint>
#include <string>

#include "model/kernels/ragged_batch.h"
#include "model/kernels/state_view.h"
#include "model/layers/weights.h"
#include "model/mixers/workspace.h"

namespace aft {

// Activations that only networks with RWKV's token shift need, for steps of up to T tokens. Each
// half of a layer uses them anew.
struct ShiftBuffers {
  float* previous = nullptr;      // [T, d], the vector before each token
  float* inputs = nullptr;        // [parts, T, d], of the products
  float* narrow = nullptr;        // [T, largest rank]
  float* first_values = nullptr;  // [T, hid], the values of the first layer
};

// The token shift before a half of a layer: the input of each of its parts is a mix of a token's
// vector and the one before it, by a share for each channel (arXiv 2305.13048, eq. 11 to 13).
// Immutable and thread-safe.
class TokenShift {
 public:
  // Copies the shares `name` [parts, width] into `arena`.
  TokenShift(const WeightMap& tensors, const std::string& name, int64_t parts, int64_t width,
             WeightArena& arena);

  // Writes the vector before each token of x [tokens, width] to `previous`, and keeps the last one
  // of each row in the state (ShiftStateSpecs). The vector before a text's first token is zero.
  void Previous(const float* x, const RaggedBatch& batch, StateView state, float* previous) const;

  // inputs[p] = x + (previous - x) * share[p], for each part p; all are [tokens, width], dense.
  void Mix(const float* x, const float* previous, int64_t tokens, float* inputs,
           const Executor& executor) const;

 private:
  int64_t parts_;
  int64_t width_;
  float* shares_;  // [parts, width]
};

}  // namespace aft
