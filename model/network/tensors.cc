#include "model/network/tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace aft {

std::vector<TensorSpec> ExpectedTensors(const NetworkConfig& config) {
  const int64_t d = config.d_model;
  const int64_t vocab = config.vocab_size;
  std::vector<TensorSpec> specs;
  const auto linear = [&specs](const std::string& name, int64_t out, int64_t in) {
    specs.push_back({name + ".weight", {out, in}});
    specs.push_back({name + ".bias", {out}});
  };
  const auto norm = [&specs, d](const std::string& name) {
    specs.push_back({name + ".weight", {d}});
    specs.push_back({name + ".bias", {d}});
  };

  specs.push_back({"embed.weight", {vocab, d}});
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string layer = absl::StrCat("layers.", i, ".");
    norm(layer + "norm1");
    linear(layer + "mixer.qkv", 3 * d, d);
    if (config.mixer.kind == MixerKind::kAftLocal && config.mixer.window > 0) {
      const int64_t rows = std::max<int64_t>(config.mixer.band_rows, 1);
      specs.push_back({layer + "mixer.w.band", {rows, config.mixer.window}});
    }
    linear(layer + "mixer.out", d, d);
    norm(layer + "norm2");
    linear(layer + "ffn.up", config.d_ff, d);
    linear(layer + "ffn.down", d, config.d_ff);
  }
  norm("norm");
  if (!config.tie_embeddings) specs.push_back({"head.weight", {vocab, d}});
  specs.push_back({"head.bias", {vocab}});
  return specs;
}

}  // namespace aft
