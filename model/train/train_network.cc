#include "model/train/train_network.h"

#include <cmath>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/stack.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/config/tensors.h"
#include "model/train/start_values.h"

namespace aft {

NetworkCarry EmptyNetworkCarry(const NetworkConfig& config, int64_t batch) {
  NetworkCarry carry;
  if (!CanCarry(config.mixer) || config.position != PositionKind::kNone) return carry;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    carry.push_back(EmptyAftCarry(config.mixer, batch, MixerWidth(config)));
  }
  return carry;
}

void RestartStream(const NetworkConfig& config, int64_t stream, NetworkCarry& carry) {
  if (carry.empty()) return;
  const AftCarry empty = EmptyAftCarry(config.mixer, 1, MixerWidth(config));
  for (AftCarry& layer : carry) {
    layer.k.select(0, stream).copy_(empty.k[0]);
    layer.v.select(0, stream).copy_(empty.v[0]);
  }
}

namespace {

at::Tensor SinusoidalPositions(int64_t tokens, int64_t width) {
  const at::Tensor rate =
      at::exp(at::arange(0, width, 2, at::kDouble) * (-std::log(1e4) / static_cast<double>(width)));
  const at::Tensor angle = at::arange(tokens, at::kDouble).unsqueeze(1) * rate;
  return at::stack({angle.sin(), angle.cos()}, 2)
      .reshape({tokens, 2 * angle.size(1)})
      .slice(1, 0, width)
      .to(at::kFloat);
}

at::Tensor Activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
  }
  AFT_CHECK(false);
}

}  // namespace

TrainNetwork::TrainNetwork(const NetworkConfig& config, uint64_t seed, double spread)
    : TrainNetwork(config, StartValues(config, {.seed = seed, .spread = spread})) {}

TrainNetwork::TrainNetwork(NetworkConfig config, TensorMap parameters)
    : config_(std::move(config)), parameters_(std::move(parameters)) {
  AFT_CHECK(config_.architecture != Architecture::kMixer);
  for (auto& [name, tensor] : parameters_) tensor.set_requires_grad(true);
}

MixerTables TrainNetwork::Tables(const std::string& prefix) const {
  MixerTables tables;
  for (const TensorSpec& spec : ExpectedMixerTables(config_.mixer, MixerWidth(config_))) {
    tables.emplace(spec.name, P(prefix + spec.name));
  }
  return tables;
}

at::Tensor TrainNetwork::Embed(const at::Tensor& tokens) const {
  at::Tensor x = at::embedding(P("embed.weight"), tokens);
  if (config_.embedding_scale != 1.0F) x = x * config_.embedding_scale;
  switch (config_.position) {
    case PositionKind::kNone:
      return x;
    case PositionKind::kLearned:
      return x + P("position.weight").slice(0, 0, tokens.size(1));
    case PositionKind::kSinusoidal:
      return x + SinusoidalPositions(tokens.size(1), config_.d_model);
  }
  return x;
}

at::Tensor TrainNetwork::Forward(const at::Tensor& tokens, NetworkCarry* carry,
                                 const Options& options) const {
  const at::ScalarType gemm = options.bf16 ? at::kBFloat16 : at::kFloat;
  const auto project = [&](const at::Tensor& x, const std::string& weight,
                           const std::string& bias) {
    const auto found = parameters_.find(bias);
    return at::linear(x.to(gemm), P(weight).to(gemm),
                      found == parameters_.end() ? at::Tensor() : found->second.to(gemm));
  };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return project(x, name + ".weight", name + ".bias");
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {config_.d_model}, P(name + ".weight"), P(name + ".bias"),
                          config_.norm_eps);
  };
  const auto drop = [](const at::Tensor& x, double share) {
    return share > 0 ? at::dropout(x, share, /*train=*/true) : x;
  };
  const Dropouts& dropouts = options.dropouts;
  // A carried state belongs to a text that has begun, but positions are counted from 0 here.
  const bool carries = carry != nullptr && !carry->empty();
  AFT_CHECK(!carries || config_.position == PositionKind::kNone);

  at::Tensor x = Embed(tokens);
  if (config_.embedding_norm) x = norm(x, "embed_norm");
  x = drop(x, dropouts.embedding);
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const std::string prefix = absl::StrCat("layers.", layer, ".");
    const bool post = config_.post_norm;
    const at::Tensor packed =
        linear(post ? x : norm(x, prefix + "norm1"), prefix + "mixer.qkv").to(at::kFloat);
    TrainFormOptions mix;
    if (carries) mix.carry = &(*carry)[static_cast<size_t>(layer)];
    mix.gemm = gemm;
    mix.grid_width = options.grid_width;
    mix.mask = options.mask;
    mix.dropout = dropouts.attention;
    const at::Tensor mixed = TrainForm(config_.mixer, packed, Tables(prefix + "mixer."), mix);
    x = x + drop(linear(mixed, prefix + "mixer.out").to(at::kFloat), dropouts.output);
    if (post) x = norm(x, prefix + "norm1");
    if (!HasFeedForward(config_, layer)) continue;
    const at::Tensor up = Activate(linear(post ? x : norm(x, prefix + "norm2"), prefix + "ffn.up"),
                                   config_.activation);
    x = x + drop(linear(drop(up, dropouts.feed_forward), prefix + "ffn.down").to(at::kFloat),
                 dropouts.output);
    if (post && HasSecondNorm(config_, layer)) x = norm(x, prefix + "norm2");
  }
  if (HasNormBehind(config_)) x = norm(x, "norm");
  if (HeadRows(config_) == 0) return x;
  return project(x, config_.tie_embeddings ? "embed.weight" : "head.weight", "head.bias")
      .to(at::kFloat);
}

}  // namespace aft
