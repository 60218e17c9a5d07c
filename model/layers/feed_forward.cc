#include "model/layers/feed_forward.h"

namespace aft {

FeedForward::FeedForward(const NetworkConfig& config, const std::string& prefix,
                         const WeightMap& tensors, WeightArena& arena)
    : activation_(config.activation),
      up_(tensors, prefix + "ffn.up.weight", prefix + "ffn.up.bias", config.d_model, config.d_ff,
          arena),
      down_(tensors, prefix + "ffn.down.weight", prefix + "ffn.down.bias", config.d_ff,
            config.d_model, arena) {}

void FeedForward::Forward(const float* x, int64_t tokens, float* wide, float* y,
                          const Workspace& workspace) const {
  up_.Forward(x, tokens, wide, activation_, workspace);
  down_.Forward(wide, tokens, y, kernels::Epilogue::Add(), workspace);
}

}  // namespace aft
