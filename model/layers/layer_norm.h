#pragma once

#include <cstdint>
#include <string>

#include "model/layers/weights.h"
#include "model/mixers/workspace.h"

namespace aft {

// Layer normalisation with scale and shift. Immutable and thread-safe.
class LayerNormLayer {
 public:
  // Copies `name`.weight and `name`.bias [width] into `arena`.
  LayerNormLayer(const WeightMap& tensors, const std::string& name, int64_t width, float eps,
                 WeightArena& arena);

  // x [rows, width] -> y [rows, width], both dense; y may be x.
  void Forward(const float* x, int64_t rows, float* y, const Executor& executor) const;

 private:
  float* weight_;
  float* bias_;
  int64_t width_;
  float eps_;
};

}  // namespace aft
