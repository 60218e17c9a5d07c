#include <cmath>

#include "ATen/TensorOperators.h"
#include "ATen/ops/std.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/kernels/aft/aft.h"  // kNarrowBias
#include "model/mixers/tables.h"

namespace aft {

at::Tensor AppliedConvFilter(const MixerConfig& config, const MixerTables& tables) {
  const at::Tensor w = tables.at("conv.w").flatten(1);
  if (!config.reparameterized) return w;
  const at::Tensor spread = at::std(w, /*dim=*/1, config.unbiased_std, /*keepdim=*/true);
  return tables.at("conv.gamma").unsqueeze(1) * (w - w.mean(1, /*keepdim=*/true)) /
             (spread + config.std_eps) +
         tables.at("conv.beta").unsqueeze(1);
}

absl::StatusOr<ConvFilter> FoldConvFilter(const MixerConfig& config, const MixerTables& tables) {
  MixerTables doubles;
  for (const auto& [name, table] : tables) doubles[name] = table.to(at::kDouble);
  const at::Tensor w = AppliedConvFilter(config, doubles).contiguous();
  ConvFilter filter;
  filter.heads = w.size(0);
  filter.taps = w.size(1);
  filter.w.resize(static_cast<size_t>(w.numel()));
  for (int64_t head = 0; head < filter.heads; ++head) {
    const at::Tensor stored = doubles.at("conv.w")[head].flatten();
    if (config.reparameterized && config.std_eps == 0 && stored.eq(stored[0]).all().item<bool>()) {
      return absl::DataLossError(
          absl::StrCat("conv.w, head ", head, ": all taps are equal, so it has no spread"));
    }
    for (int64_t j = 0; j < filter.taps; ++j) {
      const double x = w.const_data_ptr<double>()[head * filter.taps + j];
      if (!std::isfinite(static_cast<float>(x))) {
        return absl::DataLossError(
            absl::StrCat("conv.w, head ", head, ", tap ", j, ": the bias is ", x));
      }
      filter.w[static_cast<size_t>(j * filter.heads + head)] = x;
      filter.wide = filter.wide || std::abs(x) > double{kernels::kNarrowBias};
    }
  }
  return filter;
}

}  // namespace aft
