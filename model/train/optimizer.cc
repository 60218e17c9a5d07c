#include "model/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/_fused_adamw.h"
#include "ATen/ops/full.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/zeros_like.h"
#include "model/config/tensors.h"

namespace aft {

AdamW::AdamW(const NetworkConfig& config, const TensorMap& parameters) {
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (spec.role == TensorRole::kMatrix) matrices_.insert(spec.name);
  }
  for (const auto& [name, tensor] : parameters) {
    first[name] = at::zeros_like(tensor.detach());
    second[name] = at::zeros_like(tensor.detach());
  }
}

double AdamW::LearningRate(const TrainConfig& config, int64_t step, int64_t total_steps) {
  if (step < config.warmup_steps) {
    return config.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(config.warmup_steps);
  }
  const double progress =
      static_cast<double>(step - config.warmup_steps) /
      static_cast<double>(std::max<int64_t>(1, total_steps - config.warmup_steps));
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(1.0, progress)));
  return config.learning_rate * (0.1 + 0.9 * cosine);
}

double AdamW::Step(const TrainConfig& config, int64_t step, int64_t total_steps,
                   TensorMap& parameters) {
  const at::NoGradGuard no_grad;
  double square_sum = 0;
  for (const auto& [name, tensor] : parameters) {
    const double norm = at::linalg_vector_norm(tensor.grad(), 2).item<double>();
    square_sum += norm * norm;
  }
  const double norm = std::sqrt(square_sum);
  if (!std::isfinite(norm)) {
    for (auto& [name, tensor] : parameters) tensor.mutable_grad().reset();
    return norm;
  }
  // The fused kernel divides gradients by grad_scale.
  const at::Tensor grad_scale =
      at::full({}, static_cast<float>(std::max(1.0, norm / config.clip_norm)));
  const at::Tensor found_inf = at::full({}, 0.0F);
  ++steps;
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> params, grads, firsts, seconds, counts;
    for (auto& [name, tensor] : parameters) {
      if ((matrices_.count(name) != 0) != decay) continue;
      params.push_back(tensor);
      grads.push_back(tensor.grad());
      firsts.push_back(first.at(name));
      seconds.push_back(second.at(name));
      counts.push_back(at::full({}, static_cast<float>(steps)));
    }
    at::_fused_adamw_(params, grads, firsts, seconds, {}, counts,
                      LearningRate(config, step, total_steps), config.beta1, config.beta2,
                      decay ? config.weight_decay : 0.0, 1e-8, /*amsgrad=*/false,
                      /*maximize=*/false, grad_scale, found_inf);
  }
  for (auto& [name, tensor] : parameters) tensor.mutable_grad().reset();
  return norm;
}

}  // namespace aft
