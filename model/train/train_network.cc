#include "model/train/train_network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/normal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/network/tensors.h"

namespace aft {

NetworkCarry EmptyNetworkCarry(const NetworkConfig& config, int64_t batch) {
  NetworkCarry carry;
  if (config.mixer.band_rows > 0) return carry;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    carry.push_back(
        EmptyAftCarry(batch, config.d_model, config.mixer.window, config.mixer.prefix_block));
  }
  return carry;
}

void RestartStream(const NetworkConfig& config, int64_t stream, NetworkCarry& carry) {
  const AftCarry empty =
      EmptyAftCarry(1, config.d_model, config.mixer.window, config.mixer.prefix_block);
  for (AftCarry& layer : carry) {
    layer.k.select(0, stream).copy_(empty.k[0]);
    layer.v.select(0, stream).copy_(empty.v[0]);
    if (empty.num.defined()) {
      layer.num.select(0, stream).copy_(empty.num[0]);
      layer.den.select(0, stream).copy_(empty.den[0]);
      layer.max.select(0, stream).copy_(empty.max[0]);
    }
  }
}

namespace {

// With w = 0 the nearest token weighs as little as one two hundred places back, and learning starts
// with a long plateau. So layer l starts with a slope from 5 to 0 over the nearest 2^(l+1) tokens.
void FillBand(int64_t layer, at::Tensor& band) {
  const int64_t window = band.size(1);
  const int64_t span = layer >= 16 ? window : std::min<int64_t>(window, int64_t{2} << layer);
  for (int64_t j = 0; j < span; ++j) {
    band.select(1, j).fill_(5.0 * (1.0 - static_cast<double>(j) / static_cast<double>(span)));
  }
}

}  // namespace

TrainNetwork::TrainNetwork(NetworkConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const double residual_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(config_.n_layers));
  for (const TensorSpec& spec : ExpectedTensors(config_)) {
    at::Tensor tensor = at::zeros(spec.shape);
    const bool norm = absl::StrContains(spec.name, "norm");
    if (norm && absl::EndsWith(spec.name, "weight")) {
      tensor.fill_(1.0);
    } else if (spec.shape.size() == 2 && absl::EndsWith(spec.name, "weight")) {
      const bool residual =
          absl::EndsWith(spec.name, "mixer.out.weight") || absl::EndsWith(spec.name, "down.weight");
      tensor.normal_(0.0, residual ? 0.02 * residual_scale : 0.02, generator);
    }
    parameters_.emplace(spec.name, tensor);
  }
  for (int64_t layer = 0; layer < config_.n_layers && config_.mixer.window > 0; ++layer) {
    FillBand(layer, parameters_.at(absl::StrCat("layers.", layer, ".mixer.w.band")));
  }
  for (auto& [name, tensor] : parameters_) tensor.set_requires_grad(true);
}

at::Tensor TrainNetwork::Forward(const at::Tensor& tokens, NetworkCarry* carry,
                                 const Options& options) const {
  const at::ScalarType gemm = options.bf16 ? at::kBFloat16 : at::kFloat;
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::linear(x.to(gemm), P(name + ".weight").to(gemm), P(name + ".bias").to(gemm));
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {config_.d_model}, P(name + ".weight"), P(name + ".bias"),
                          config_.norm_eps);
  };
  const auto drop = [&](const at::Tensor& x) {
    return options.dropout > 0 ? at::dropout(x, options.dropout, /*train=*/true) : x;
  };

  at::Tensor x = at::embedding(P("embed.weight"), tokens);
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const std::string prefix = absl::StrCat("layers.", layer, ".");
    const at::Tensor packed =
        linear(norm(x, prefix + "norm1"), prefix + "mixer.qkv").to(at::kFloat);
    const at::Tensor band = config_.mixer.window > 0 ? P(prefix + "mixer.w.band") : at::Tensor();
    const at::Tensor mixed = AftParallel(
        packed, band, config_.mixer.window, config_.mixer.prefix_block,
        carry == nullptr || carry->empty() ? nullptr : &(*carry)[static_cast<size_t>(layer)], gemm);
    x = x + drop(linear(mixed, prefix + "mixer.out").to(at::kFloat));
    const at::Tensor up = at::gelu(linear(norm(x, prefix + "norm2"), prefix + "ffn.up"), "tanh");
    x = x + drop(linear(up, prefix + "ffn.down").to(at::kFloat));
  }
  x = norm(x, "norm");
  const std::string head = config_.tie_embeddings ? "embed.weight" : "head.weight";
  return at::linear(x.to(gemm), P(head).to(gemm), P("head.bias").to(gemm)).to(at::kFloat);
}

}  // namespace aft
