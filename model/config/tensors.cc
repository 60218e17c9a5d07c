#include "model/config/tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace aft {

int64_t PackedWidth(const MixerConfig& mixer, int64_t hid) {
  switch (mixer.kind) {
    case MixerKind::kAftSimple:
    case MixerKind::kAftLocal:
    case MixerKind::kAftFull:
    case MixerKind::kBlockLocal:
    case MixerKind::kDotProduct:
      return 3 * hid;
    case MixerKind::kAftConv:
      return 2 * hid + mixer.heads;
    case MixerKind::kCosine:
      return 3 * hid + mixer.heads;
    case MixerKind::kAdditive:
      return 2 * mixer.heads * mixer.score_width + hid;
    case MixerKind::kLocation:
      return 2 * hid;
  }
  return 0;
}

std::vector<TensorSpec> ExpectedMixerTables(const MixerConfig& mixer, int64_t hid) {
  const int64_t s = mixer.window;
  const int64_t rows = mixer.band_rows;
  const bool local = mixer.kind == MixerKind::kAftLocal && s > 0;
  if (local || mixer.kind == MixerKind::kAftFull) {
    switch (mixer.bias) {
      case BiasForm::kBand:
        return {{"w.band", {std::max<int64_t>(rows, 1), mixer.causal ? s : 2 * s - 1}}};
      case BiasForm::kFull:
        return {{"w.full", {rows, rows}}};
      case BiasForm::kFactors:
        return {{"w.u", {rows, mixer.bias_rank}}, {"w.v", {rows, mixer.bias_rank}}};
    }
  }
  if (mixer.kind == MixerKind::kAftConv) {
    std::vector<TensorSpec> specs = {{"conv.w", {mixer.heads, s}}};
    if (mixer.grid) specs[0].shape.push_back(s);
    if (mixer.reparameterized) {
      specs.push_back({"conv.gamma", {mixer.heads}});
      specs.push_back({"conv.beta", {mixer.heads}});
    }
    return specs;
  }
  if (mixer.kind == MixerKind::kAdditive) return {{"score.v", {mixer.heads, mixer.score_width}}};
  if (mixer.kind == MixerKind::kLocation) return {{"location.weight", {rows, hid}}};
  return {};
}

std::vector<TensorSpec> ExpectedTensors(const NetworkConfig& config) {
  const int64_t d = config.d_model;
  const int64_t hid = MixerWidth(config);
  const int64_t vocab = config.vocab_size;
  const bool network = config.architecture != Architecture::kMixer;
  std::vector<TensorSpec> specs;
  const auto linear = [&specs](const std::string& name, int64_t out, int64_t in, bool bias = true) {
    specs.push_back({name + ".weight", {out, in}});
    if (bias) specs.push_back({name + ".bias", {out}});
  };
  const auto norm = [&specs, d](const std::string& name) {
    specs.push_back({name + ".weight", {d}});
    specs.push_back({name + ".bias", {d}});
  };

  if (network) specs.push_back({"embed.weight", {vocab, d}});
  if (config.position == PositionKind::kLearned) {
    specs.push_back({"position.weight", {config.position_rows, d}});
  }
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string layer = absl::StrCat("layers.", i, ".");
    if (network) norm(layer + "norm1");
    linear(layer + "mixer.qkv", PackedWidth(config.mixer, hid), d, config.qkv_bias);
    for (TensorSpec& table : ExpectedMixerTables(config.mixer, hid)) {
      specs.push_back({layer + "mixer." + table.name, std::move(table.shape)});
    }
    linear(layer + "mixer.out", d, hid);
    if (!network) continue;
    norm(layer + "norm2");
    linear(layer + "ffn.up", config.d_ff, d);
    linear(layer + "ffn.down", d, config.d_ff);
  }
  if (network) norm("norm");
  if (config.architecture == Architecture::kDecoderLm) {
    if (!config.tie_embeddings) specs.push_back({"head.weight", {vocab, d}});
    if (config.head_bias) specs.push_back({"head.bias", {vocab}});
  }
  return specs;
}

}  // namespace aft
