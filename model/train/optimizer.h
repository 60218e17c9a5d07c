#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "model/checkpoint/safetensors.h"
#include "model/train/train_config.h"

namespace aft {

// AdamW over named tensors (LibTorch's fused CPU kernel), with global gradient clipping, linear
// warm-up and cosine decay to a tenth of the peak. Weight decay acts on TensorRole::kMatrix only.
class AdamW {
 public:
  // The parameters of a network with this config.
  AdamW(const NetworkConfig& config, const TensorMap& parameters);

  // Applies the gradients and clears them. Returns the gradient's global norm before clipping. When
  // that is not finite, it only clears the gradients.
  double Step(const TrainConfig& config, int64_t step, int64_t total_steps, TensorMap& parameters);

  static double LearningRate(const TrainConfig& config, int64_t step, int64_t total_steps);

  // First and second moments by parameter name, and the number of steps done: the state to resume
  // from.
  TensorMap first, second;
  int64_t steps = 0;

 private:
  std::set<std::string> matrices_;
};

}  // namespace aft
