#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/config/config.h"
#include "model/layers/linear.h"
#include "model/layers/token_shift.h"

namespace aft {

// The second half of a layer. NetworkConfig::feed_forward names its kind:
//
//   kMlp               y += down(activation(up(x))), for each token by itself
//   kChannelMix        the same with the input of up from a token shift
//   kGatedChannelMix   y += sigmoid(gate) * that, where the gate has an input of its own from it
//
// Immutable and thread-safe.
class FeedForward {
 public:
  // Packs the tensors "<prefix>ffn.*" into `arena`. REQUIRES: they passed CheckTensors.
  FeedForward(const NetworkConfig& config, const std::string& prefix, const WeightMap& tensors,
              WeightArena& arena);

  // Null for kMlp. Its Previous must run before Forward, for all tokens of a step.
  const TokenShift* shift() const { return shift_.has_value() ? &*shift_ : nullptr; }

  //   x [tokens, d] in; wide [tokens, d_ff] workspace; y [tokens, d] in and out. With a token shift
  //   buffers.previous has the vectors before those of x.
  void Forward(const float* x, int64_t tokens, const ShiftBuffers& buffers, float* wide, float* y,
               const Workspace& workspace) const;

 private:
  int64_t width_;  // d
  Activation activation_;
  std::optional<TokenShift> shift_;
  LinearLayer up_;
  std::optional<LinearLayer> gate_;
  LinearLayer down_;
};

}  // namespace aft
