#include "model/convert/aft_module.h"

#include <algorithm>

#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace aft {

namespace {

// The band |t - t'| < window of a position bias w [T, T], [query, key], as w.band: causal [T, s],
// column = t - t'; bidirectional [T, 2s - 1], column = t - t' + s - 1. What lies outside of the
// band is dropped; places without a key are 0. REQUIRES: 1 <= window <= T.
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

}  // namespace

absl::StatusOr<NetworkConfig> MixerModuleConfig(Source& source, const std::string& query) {
  AFT_ASSIGN_OR_RETURN(const at::Tensor weight,
                       source.Take(query + ".weight", {Source::kAny, Source::kAny}));
  NetworkConfig config;
  config.architecture = Architecture::kMixer;
  config.d_model = weight.size(1);
  config.n_layers = 1;
  config.qkv_bias = source.Has(query + ".bias");
  config.tokenizer.clear();
  config.mixer.hidden = weight.size(0) == config.d_model ? 0 : weight.size(0);
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

}  // namespace aft
