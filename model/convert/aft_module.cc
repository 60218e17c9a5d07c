#include "model/convert/aft_module.h"

#include <algorithm>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace aft {

absl::StatusOr<Projections> TakeProjections(Source& source, const std::string& prefix,
                                            const ProjectionNames& names, const std::string& layer,
                                            TensorMap* tensors, ProjectionSizes sizes) {
  Projections found;
  const std::string q = prefix + names.q;
  AFT_ASSIGN_OR_RETURN(at::Tensor weight, source.Take(q + ".weight", {sizes.hid, sizes.d}));
  found.hid = weight.size(0);
  found.d = weight.size(1);
  found.qkv_bias = source.Has(q + ".bias");
  std::vector<at::Tensor> weights = {std::move(weight)};
  std::vector<at::Tensor> biases;
  for (const std::string& name : {names.q, names.k, names.v}) {
    if (name != names.q) {
      AFT_ASSIGN_OR_RETURN(weights.emplace_back(),
                           source.Take(prefix + name + ".weight", {found.hid, found.d}));
    }
    if (found.qkv_bias) {
      AFT_ASSIGN_OR_RETURN(biases.emplace_back(),
                           source.Take(prefix + name + ".bias", {found.hid}));
    }
  }
  (*tensors)[layer + "mixer.qkv.weight"] = at::cat(weights);
  if (found.qkv_bias) (*tensors)[layer + "mixer.qkv.bias"] = at::cat(biases);
  const std::string out = prefix + names.out;
  AFT_ASSIGN_OR_RETURN((*tensors)[layer + "mixer.out.weight"],
                       source.Take(out + ".weight", {found.d, found.hid}));
  AFT_ASSIGN_OR_RETURN((*tensors)[layer + "mixer.out.bias"], source.Take(out + ".bias", {found.d}));
  return found;
}

NetworkConfig MixerModuleConfig(const Projections& projections) {
  NetworkConfig config;
  config.architecture = Architecture::kMixer;
  config.d_model = projections.d;
  config.n_layers = 1;
  config.qkv_bias = projections.qkv_bias;
  config.tokenizer.clear();
  config.mixer.hidden = projections.hid == projections.d ? 0 : projections.hid;
  return config;
}

absl::Status UseBias(const std::string& name, const at::Tensor& w, std::optional<int64_t> window,
                     const std::string& layer, NetworkConfig* config, TensorMap* tensors) {
  const int64_t rows = w.size(0);
  if (w.size(1) != rows) {
    return TensorError(name, absl::StrCat("has shape [", rows, ", ", w.size(1),
                                          "], expected as many rows as columns"));
  }
  config->max_seq_len = rows;
  MixerConfig& mixer = config->mixer;
  if (!window.has_value()) {
    mixer.kind = MixerKind::kAftFull;
    mixer.bias = BiasForm::kFull;
    mixer.band_rows = rows;
    (*tensors)[layer + "mixer.w.full"] = w;
    return absl::OkStatus();
  }
  mixer.kind = MixerKind::kAftLocal;
  mixer.window = std::min(*window, rows);
  if (mixer.window == 0) return absl::OkStatus();
  mixer.band_rows = rows;
  (*tensors)[layer + "mixer.w.band"] = BandOf(w, mixer.window, mixer.causal);
  return absl::OkStatus();
}

at::Tensor BandOf(const at::Tensor& w, int64_t window, bool causal) {
  const int64_t rows = w.size(0);
  AFT_CHECK(window >= 1 && window <= rows);
  const int64_t columns = causal ? window : 2 * window - 1;
  at::Tensor band = at::zeros({rows, columns}, at::kFloat);
  for (int64_t column = 0; column < columns; ++column) {
    const int64_t offset = causal ? column : column - (window - 1);  // t - t'
    const at::Tensor diagonal = w.diagonal(-offset);
    band.select(1, column)
        .narrow(0, std::max<int64_t>(offset, 0), diagonal.size(0))
        .copy_(diagonal);
  }
  return band;
}

}  // namespace aft
