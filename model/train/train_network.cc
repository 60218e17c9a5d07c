#include "model/train/train_network.h"

#include <cmath>
#include <string>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "model/train/train_token_shift.h"

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

at::Tensor Drop(const at::Tensor& x, double share) {
  return share > 0 ? at::dropout(x, share, /*train=*/true) : x;
}

// One forward pass over a batch.
class TrainPass {
 public:
  TrainPass(const NetworkConfig& config, const TensorMap& parameters,
            const TrainNetwork::Options& options)
      : config_(config),
        parameters_(parameters),
        options_(options),
        linear_(parameters, options.bf16 ? at::kBFloat16 : at::kFloat),
        shift_(config, parameters, linear_) {}

  at::Tensor Embed(const at::Tensor& tokens) const;
  // The residual stream x [B, T, d] after the mixer or the feed-forward of the layer whose tensors
  // begin with `prefix`. `carried` is advanced, or null.
  at::Tensor Mix(const at::Tensor& x, const std::string& prefix, LayerCarry* carried);
  at::Tensor FeedForward(const at::Tensor& x, const std::string& prefix, LayerCarry* carried) const;
  at::Tensor Norm(const at::Tensor& x, const std::string& name) const;
  at::Tensor Head(const at::Tensor& x) const;

 private:
  const at::Tensor& P(const std::string& name) const { return parameters_.at(name); }
  MixerTables Tables(const std::string& mixer) const;

  const NetworkConfig& config_;
  const TensorMap& parameters_;
  const TrainNetwork::Options& options_;
  const TrainLinear linear_;
  TrainTokenShift shift_;
};

MixerTables TrainPass::Tables(const std::string& mixer) const {
  MixerTables tables;
  for (const TensorSpec& spec : ExpectedMixerTables(config_.mixer, MixerWidth(config_))) {
    tables.emplace(spec.name, P(mixer + spec.name));
  }
  return tables;
}

at::Tensor TrainPass::Norm(const at::Tensor& x, const std::string& name) const {
  return at::layer_norm(x, {config_.d_model}, P(name + ".weight"), P(name + ".bias"),
                        config_.norm_eps);
}

at::Tensor TrainPass::Embed(const at::Tensor& tokens) const {
  at::Tensor x = at::embedding(P("embed.weight"), tokens);
  if (config_.embedding_scale != 1.0F) x = x * config_.embedding_scale;
  if (config_.position == PositionKind::kLearned) {
    x = x + P("position.weight").slice(0, 0, tokens.size(1));
  } else if (config_.position == PositionKind::kSinusoidal) {
    x = x + SinusoidalPositions(tokens.size(1), config_.d_model);
  }
  if (config_.embedding_norm) x = Norm(x, "embed_norm");
  return Drop(x, options_.dropouts.embedding);
}

at::Tensor TrainPass::Mix(const at::Tensor& x, const std::string& prefix, LayerCarry* carried) {
  const std::string mixer = prefix + "mixer.";
  const at::Tensor in = config_.post_norm ? x : Norm(x, prefix + "norm1");
  const at::Tensor packed =
      ShiftsFeedForward(config_)
          ? shift_.Pack(in, mixer, carried != nullptr ? &carried->shift : nullptr)
          : linear_.Forward(in, mixer + "qkv").to(at::kFloat);
  TrainFormOptions form;
  if (carried != nullptr) form.carry = &carried->mixer;
  form.gemm = linear_.format();
  form.grid_width = options_.grid_width;
  form.mask = options_.mask;
  form.dropout = options_.dropouts.attention;
  const at::Tensor mixed = TrainForm(config_.mixer, packed, Tables(mixer), form);
  const at::Tensor out = linear_.Forward(mixed, mixer + "out").to(at::kFloat);
  const at::Tensor sum = x + Drop(out, options_.dropouts.output);
  return config_.post_norm ? Norm(sum, prefix + "norm1") : sum;
}

at::Tensor TrainPass::FeedForward(const at::Tensor& x, const std::string& prefix,
                                  LayerCarry* carried) const {
  const std::string ffn = prefix + "ffn.";
  const at::Tensor in = config_.post_norm ? x : Norm(x, prefix + "norm2");
  std::vector<at::Tensor> inputs = {in};
  if (ShiftsFeedForward(config_)) {
    inputs = shift_.Inputs(in, ffn + "shift",
                           carried != nullptr ? &carried->feed_forward_shift : nullptr);
  }
  const at::Tensor up = Activate(linear_.Forward(inputs[0], ffn + "up"), config_.activation);
  at::Tensor down =
      linear_.Forward(Drop(up, options_.dropouts.feed_forward), ffn + "down").to(at::kFloat);
  if (config_.feed_forward == FeedForwardKind::kGatedChannelMix) {
    down = down * linear_.Forward(inputs[1], ffn + "gate").to(at::kFloat).sigmoid();
  }
  return x + Drop(down, options_.dropouts.output);
}

at::Tensor TrainPass::Head(const at::Tensor& x) const {
  const char* const weight = config_.tie_embeddings ? "embed.weight" : "head.weight";
  return linear_.Forward(x, weight, "head.bias").to(at::kFloat);
}

}  // namespace

TrainNetwork::TrainNetwork(NetworkConfig config, TensorMap parameters)
    : config_(std::move(config)), parameters_(std::move(parameters)) {
  AFT_CHECK(config_.architecture != Architecture::kMixer);
  for (auto& [name, tensor] : parameters_) tensor.set_requires_grad(true);
}

at::Tensor TrainNetwork::Forward(const at::Tensor& tokens, NetworkCarry* carry,
                                 const Options& options) const {
  // A carried state belongs to a text that has begun, but positions are counted from 0 here.
  const bool carries = carry != nullptr && !carry->empty();
  AFT_CHECK(!carries || config_.position == PositionKind::kNone);

  TrainPass pass(config_, parameters_, options);
  at::Tensor x = pass.Embed(tokens);
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const std::string prefix = absl::StrCat("layers.", layer, ".");
    LayerCarry* const carried = carries ? &(*carry)[static_cast<size_t>(layer)] : nullptr;
    x = pass.Mix(x, prefix, carried);
    if (!HasFeedForward(config_, layer)) continue;
    x = pass.FeedForward(x, prefix, carried);
    if (config_.post_norm && HasSecondNorm(config_, layer)) x = pass.Norm(x, prefix + "norm2");
  }
  if (HasNormBehind(config_)) x = pass.Norm(x, "norm");
  return HeadRows(config_) == 0 ? x : pass.Head(x);
}

}  // namespace aft
