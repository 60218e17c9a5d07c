#include "model/config/tensors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/config/kinds.h"

namespace aft {

int64_t PackedWidth(const MixerConfig& mixer, int64_t hid) {
  int64_t columns = 0;
  for (const PackedPart& part : SpecOf(mixer.kind).packed(mixer, hid)) columns += part.columns;
  return columns;
}

std::vector<TensorSpec> ExpectedMixerTables(const MixerConfig& mixer, int64_t hid) {
  const KindSpec& spec = SpecOf(mixer.kind);
  return spec.tables == nullptr ? std::vector<TensorSpec>() : spec.tables(mixer, hid);
}

std::vector<TensorSpec> ExpectedTensors(const NetworkConfig& config) {
  const int64_t d = config.d_model;
  const int64_t hid = MixerWidth(config);
  const int64_t vocab = config.vocab_size;
  const bool network = config.architecture != Architecture::kMixer;
  std::vector<TensorSpec> specs;
  const auto matrix = [&specs](std::string name, int64_t out, int64_t in,
                               TensorStart start = TensorStart::kWeight) {
    specs.push_back({std::move(name), {out, in}, start, 0, TensorRole::kMatrix});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias = true,
                          TensorStart start = TensorStart::kWeight) {
    matrix(name + ".weight", out, in, start);
    if (bias) specs.push_back({name + ".bias", {out}});
  };
  const auto norm = [&specs, d](const std::string& name) {
    specs.push_back({name + ".weight", {d}, TensorStart::kOnes});
    specs.push_back({name + ".bias", {d}});
  };

  const KindSpec& kind = SpecOf(config.mixer.kind);
  const auto shifted_parts = [&](const std::string& mixer, bool first_layer) {
    std::vector<PackedPart> parts = kind.packed(config.mixer, hid);
    specs.push_back({mixer + "shift", {static_cast<int64_t>(parts.size()), d}});
    if (kind.value_gate != nullptr && !first_layer) {
      parts.push_back(kind.value_gate(config.mixer, hid));
    }
    for (const PackedPart& part : parts) {
      const std::string name = mixer + part.name;
      if (part.rank == 0) {
        matrix(name + ".weight", part.columns, d);
      } else {
        matrix(name + ".down.weight", part.rank, d);
        linear(name + ".up", part.columns, part.rank, part.bias);
      }
    }
  };

  if (network) matrix("embed.weight", vocab, d);
  if (config.position == PositionKind::kLearned) {
    specs.push_back({"position.weight", {config.position_rows, d}, TensorStart::kWeight});
  }
  if (config.embedding_norm) norm("embed_norm");
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string layer = absl::StrCat("layers.", i, ".");
    if (network) norm(layer + "norm1");
    if (kind.token_shift) {
      shifted_parts(layer + "mixer.", i == 0);
    } else {
      linear(layer + "mixer.qkv", PackedWidth(config.mixer, hid), d, config.qkv_bias);
    }
    for (TensorSpec& table : ExpectedMixerTables(config.mixer, hid)) {
      table.name = layer + "mixer." + table.name;
      specs.push_back(std::move(table));
    }
    linear(layer + "mixer.out", d, hid, !kind.token_shift, TensorStart::kResidual);
    if (!network) continue;
    if (!HasFeedForward(config, i)) continue;
    if (HasSecondNorm(config, i)) norm(layer + "norm2");
    const bool gated = config.feed_forward == FeedForwardKind::kGatedChannelMix;
    const bool bias = !ShiftsFeedForward(config);
    if (!bias) {
      specs.push_back({layer + "ffn.shift", {gated ? 2 : 1, d}});
    }
    linear(layer + "ffn.up", config.d_ff, d, bias);
    if (gated) matrix(layer + "ffn.gate.weight", d, d);
    linear(layer + "ffn.down", d, config.d_ff, bias, TensorStart::kResidual);
  }
  if (network && HasNormBehind(config)) norm("norm");
  if (const int64_t rows = HeadRows(config); rows > 0) {
    if (!config.tie_embeddings) matrix("head.weight", rows, d);
    if (config.head_bias) specs.push_back({"head.bias", {rows}});
  }
  return specs;
}

}  // namespace aft
