#include "model/layers/layer_norm.h"

#include <algorithm>

#include "model/kernels/norm.h"

namespace aft {

LayerNormLayer::LayerNormLayer(const WeightMap& tensors, const std::string& name, int64_t width,
                               float eps, WeightArena& arena)
    : weight_(arena.Take(width)), bias_(arena.Take(width)), width_(width), eps_(eps) {
  std::copy_n(TensorData(tensors, name + ".weight"), width, weight_);
  std::copy_n(TensorData(tensors, name + ".bias"), width, bias_);
}

void LayerNormLayer::Forward(const float* x, int64_t rows, float* y,
                             const Executor& executor) const {
  constexpr int64_t kRowsPerThread = 64;
  executor.For(rows, kRowsPerThread, [&](int64_t begin, int64_t end, int) {
    kernels::LayerNorm(x, width_, weight_, bias_, eps_, y, begin, end);
  });
}

}  // namespace aft
