#include "model/train/train_network.h"

#include <cmath>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "model/train/start_values.h"

namespace aft {

NetworkCarry EmptyNetworkCarry(const NetworkConfig& config, int64_t batch) {
  NetworkCarry carry;
  if (!CanCarry(config.mixer) || config.position != PositionKind::kNone) return carry;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    LayerCarry& one = carry.emplace_back();
    one.mixer = EmptyMixerCarry(config.mixer, batch, MixerWidth(config));
    if (!SpecOf(config.mixer.kind).token_shift) continue;
    one.shift = at::zeros({batch, config.d_model});
    one.feed_forward_shift = at::zeros({batch, config.d_model});
  }
  return carry;
}

void RestartStream(const NetworkConfig& config, int64_t stream, NetworkCarry& carry) {
  if (carry.empty()) return;
  NetworkCarry empty = EmptyNetworkCarry(config, 1);
  for (size_t layer = 0; layer < carry.size(); ++layer) {
    const auto of_one = CarryTensors(empty[layer]);
    const auto of_all = CarryTensors(carry[layer]);
    for (size_t i = 0; i < of_all.size(); ++i) {
      of_all[i].second->select(0, stream).copy_((*of_one[i].second)[0]);
    }
  }
}

std::vector<std::pair<const char*, at::Tensor*>> CarryTensors(LayerCarry& carry) {
  std::vector<std::pair<const char*, at::Tensor*>> tensors = {
      {"k", &carry.mixer.k},
      {"v", &carry.mixer.v},
      {"sums", &carry.mixer.sums},
      {"shift", &carry.shift},
      {"feed_forward_shift", &carry.feed_forward_shift}};
  std::erase_if(tensors, [](const auto& one) { return !one.second->defined(); });
  return tensors;
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
    case Activation::kSquaredRelu:
      return at::relu(x).square();
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

  // Inputs from a token shift: x and the vectors before it, mixed by row `part` of the shares.
  const auto previous = [](const at::Tensor& x, at::Tensor* carried) {
    const at::Tensor first = carried != nullptr ? carried->unsqueeze(1).to(x.scalar_type())
                                                : at::zeros({x.size(0), 1, x.size(2)}, x.options());
    const at::Tensor before = at::cat({first, x.slice(1, 0, x.size(1) - 1)}, 1);
    if (carried != nullptr) *carried = x.select(1, x.size(1) - 1).detach().to(at::kFloat);
    return before;
  };
  const auto shifted = [&](const at::Tensor& x, const at::Tensor& before, const std::string& shares,
                           int64_t part) { return x + (before - x) * P(shares).select(0, part); };
  const auto low_rank = [&](const at::Tensor& x, const std::string& name,
                            PackedPart::Between between) {
    at::Tensor narrow = linear(x, name + ".down").to(at::kFloat);
    if (between == PackedPart::Between::kTanh) narrow = narrow.tanh();
    if (between == PackedPart::Between::kSigmoid) narrow = narrow.sigmoid();
    return linear(narrow, name + ".up");
  };
  at::Tensor first_values;
  // The packed input of a mixer with token shift.
  const auto shifted_parts = [&](const at::Tensor& x, const at::Tensor& before,
                                 const std::string& mixer) {
    std::vector<at::Tensor> parts;
    for (const PackedPart& spec :
         SpecOf(config_.mixer.kind).packed(config_.mixer, MixerWidth(config_))) {
      const at::Tensor input =
          shifted(x, before, mixer + "shift", static_cast<int64_t>(parts.size()));
      const std::string name = mixer + spec.name;
      at::Tensor part = (spec.rank == 0 ? linear(input, name) : low_rank(input, name, spec.between))
                            .to(at::kFloat);
      if (spec.name == std::string("v")) {
        if (!first_values.defined()) {
          first_values = part;
        } else if (parameters_.count(mixer + "v_gate.up.weight") > 0) {
          const at::Tensor gate = low_rank(input, mixer + "v_gate", PackedPart::Between::kNothing);
          part = part + (first_values - part) * gate.to(at::kFloat).sigmoid();
        }
      }
      parts.push_back(part);
    }
    return at::cat(parts, 2);
  };

  at::Tensor x = Embed(tokens);
  if (config_.embedding_norm) x = norm(x, "embed_norm");
  x = drop(x, dropouts.embedding);
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const std::string prefix = absl::StrCat("layers.", layer, ".");
    const bool post = config_.post_norm;
    LayerCarry* const carried = carries ? &(*carry)[static_cast<size_t>(layer)] : nullptr;
    const at::Tensor in = post ? x : norm(x, prefix + "norm1");
    const at::Tensor packed =
        ShiftsFeedForward(config_)
            ? shifted_parts(in, previous(in, carries ? &carried->shift : nullptr),
                            prefix + "mixer.")
            : linear(in, prefix + "mixer.qkv").to(at::kFloat);
    TrainFormOptions mix;
    if (carries) mix.carry = &carried->mixer;
    mix.gemm = gemm;
    mix.grid_width = options.grid_width;
    mix.mask = options.mask;
    mix.dropout = dropouts.attention;
    const at::Tensor mixed = TrainForm(config_.mixer, packed, Tables(prefix + "mixer."), mix);
    x = x + drop(linear(mixed, prefix + "mixer.out").to(at::kFloat), dropouts.output);
    if (post) x = norm(x, prefix + "norm1");
    if (!HasFeedForward(config_, layer)) continue;
    const at::Tensor second = post ? x : norm(x, prefix + "norm2");
    at::Tensor before;
    if (ShiftsFeedForward(config_)) {
      before = previous(second, carries ? &carried->feed_forward_shift : nullptr);
    }
    const auto input = [&](int64_t part) {
      return before.defined() ? shifted(second, before, prefix + "ffn.shift", part) : second;
    };
    const at::Tensor up = Activate(linear(input(0), prefix + "ffn.up"), config_.activation);
    at::Tensor down = linear(drop(up, dropouts.feed_forward), prefix + "ffn.down").to(at::kFloat);
    if (config_.feed_forward == FeedForwardKind::kGatedChannelMix) {
      down = down * linear(input(1), prefix + "ffn.gate").to(at::kFloat).sigmoid();
    }
    x = x + drop(down, dropouts.output);
    if (post && HasSecondNorm(config_, layer)) x = norm(x, prefix + "norm2");
  }
  if (HasNormBehind(config_)) x = norm(x, "norm");
  if (HeadRows(config_) == 0) return x;
  return project(x, config_.tie_embeddings ? "embed.weight" : "head.weight", "head.bias")
      .to(at::kFloat);
}

}  // namespace aft
