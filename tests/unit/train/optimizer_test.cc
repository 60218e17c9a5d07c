#include "model/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/ones_like.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "tests/unit/train/tiny_network.h"

namespace aft {
namespace {

// Returns parameters that are all 1, with gradients that are all `gradient`.
TensorMap Ones(const NetworkConfig& network, double gradient) {
  TensorMap parameters;
  for (const TensorSpec& spec : ExpectedTensors(network)) {
    at::Tensor& tensor = parameters[spec.name] = at::ones(spec.shape);
    tensor.mutable_grad() = at::full(spec.shape, gradient, at::kFloat);
  }
  return parameters;
}

TEST(AdamWTest, OnlyMatricesDecay) {
  NetworkConfig network = TinyNetwork();
  network.position = PositionKind::kLearned;
  network.position_rows = network.max_seq_len = 8;
  TensorMap parameters = Ones(network, 0);
  TrainConfig config;
  config.warmup_steps = 0;
  AdamW(network, parameters).Step(config, 0, 10, parameters);
  for (const TensorSpec& spec : ExpectedTensors(network)) {
    const bool decayed = parameters.at(spec.name).max().item<float>() < 1;
    EXPECT_EQ(decayed, spec.role == TensorRole::kMatrix) << spec.name;
  }
}

TEST(AdamWTest, GradientsBeyondTheNormAreScaledDown) {
  const NetworkConfig network = TinyNetwork();
  const double norm = std::sqrt(CountParameters(network));
  for (const double bound : {0.5, 2.0}) {  // times the norm
    TensorMap parameters = Ones(network, 1);
    TrainConfig config;
    config.clip_norm = bound * norm;
    AdamW optimizer(network, parameters);
    EXPECT_NEAR(optimizer.Step(config, 0, 10, parameters), norm, 1e-3);
    const double scale = std::min(bound, 1.0);
    for (const auto& [name, first] : optimizer.first) {
      EXPECT_NEAR(first.max().item<double>(), (1 - config.beta1) * scale, 1e-6) << name;
      EXPECT_NEAR(optimizer.second.at(name).max().item<double>(),
                  (1 - config.beta2) * scale * scale, 1e-6)
          << name;
    }
  }
}

// The first steps are corrected for moments that began at 0.
TEST(AdamWTest, EqualGradientsMakeStepsOfTheRate) {
  const NetworkConfig network = TinyNetwork();
  TensorMap parameters = Ones(network, 1);
  TrainConfig config;
  config.learning_rate = 1e-2;
  config.warmup_steps = 0;
  config.clip_norm = 1e9;
  AdamW optimizer(network, parameters);
  double expected = 1;
  for (int64_t step = 0; step < 3; ++step) {
    for (auto& [name, tensor] : parameters) tensor.mutable_grad() = at::ones_like(tensor);
    optimizer.Step(config, step, /*total_steps=*/1000, parameters);
    expected -= AdamW::LearningRate(config, step, 1000);
    EXPECT_NEAR(parameters.at("norm.bias").max().item<double>(), expected, 1e-5) << step;
  }
}

TEST(AdamWTest, AGradientThatIsNotFiniteChangesNothing) {
  const NetworkConfig network = TinyNetwork();
  TensorMap parameters = Ones(network, 1);
  parameters.at("norm.bias").mutable_grad().fill_(std::nan(""));
  AdamW optimizer(network, parameters);
  EXPECT_TRUE(std::isnan(optimizer.Step(TrainConfig(), 0, 10, parameters)));
  EXPECT_EQ(optimizer.steps, 0);
  for (const auto& [name, tensor] : parameters) {
    EXPECT_TRUE(at::equal(tensor, at::ones_like(tensor))) << name;
    EXPECT_FALSE(tensor.grad().defined()) << name;
  }
}

TEST(AdamWTest, TheRateRisesAndThenFallsToATenth) {
  TrainConfig config;
  config.learning_rate = 2;
  config.warmup_steps = 4;
  for (const auto& [step, rate] : {std::pair(0, 0.5), std::pair(3, 2.0), std::pair(4, 2.0),
                                   std::pair(9, 1.1), std::pair(14, 0.2), std::pair(15, 0.2)}) {
    EXPECT_NEAR(AdamW::LearningRate(config, step, /*total_steps=*/14), rate, 1e-12) << step;
  }
}

}  // namespace
}  // namespace aft
