#pragma once

#include <cstdint>

#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/train/train_config.h"

namespace aft {

struct StartOptions {
  uint64_t seed = 0;
  StartRule rule = StartRule::kNarrow;
  double spread = 0.02;  // of kNarrow
  BiasStart bias = BiasStart::kSlope;
};

inline StartOptions StartOptionsOf(const TrainConfig& config) {
  return {config.seed, config.start, config.weight_spread, config.bias_start};
}

// The tensors of a new network, fp32, with the names that they have in a checkpoint. Under every
// rule norms start with weights 1 and biases 0.
//   kNarrow  weights N(0, spread^2), projections into the residual stream divided by sqrt(2 L),
//            biases 0
//   kLinear  weights and biases of a linear layer uniform in +-1 / sqrt(inputs); rows of embeddings
//            and learned positions N(0, 1)
//   kXavier  matrices uniform in +-sqrt(6 / (inputs + outputs)), the embedding among them; biases
//            as kLinear, learned positions 0
// Position biases of AFT start as BiasStart says. Their factors and the other tables of mixers
// start as KindSpec::tables says.
TensorMap StartValues(const NetworkConfig& config, const StartOptions& options);

}  // namespace aft
