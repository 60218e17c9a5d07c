#pragma once

#include <cstdint>
#include <string>

#include "model/config/config.h"
#include "model/layers/linear.h"

namespace aft {

// The second half of a layer, which processes each token by itself. NetworkConfig::feed_forward
// names its kind. kMlp (the only one so far): y += down(activation(up(x))). Immutable and
// thread-safe.
class FeedForward {
 public:
  // Packs the tensors "<prefix>ffn.*" into `arena`. REQUIRES: they passed CheckTensors.
  FeedForward(const NetworkConfig& config, const std::string& prefix, const WeightMap& tensors,
              WeightArena& arena);

  //   x [tokens, d] in; wide [tokens, d_ff] workspace; y [tokens, d] in and out
  void Forward(const float* x, int64_t tokens, float* wide, float* y,
               const Workspace& workspace) const;

 private:
  Activation activation_;
  LinearLayer up_;
  LinearLayer down_;
};

}  // namespace aft
