#include "model/mixers/conv_filter.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/kernels/aft.h"  // kNarrowBias

namespace aft {

absl::StatusOr<ConvFilter> FoldConvFilter(const MixerConfig& config, const MixerTables& tables) {
  ConvFilter filter;
  const int64_t taps = config.window * (config.grid ? config.window : 1);
  filter.heads = config.heads;
  filter.taps = taps;
  filter.w.resize(static_cast<size_t>(taps * filter.heads));
  const float* stored = tables.at("conv.w").const_data_ptr<float>();
  for (int64_t head = 0; head < filter.heads; ++head) {
    std::vector<double> w(stored + head * taps, stored + (head + 1) * taps);
    if (config.reparameterized) {
      if (config.std_eps == 0 &&
          std::all_of(w.begin(), w.end(), [&w](double x) { return x == w[0]; })) {
        return absl::DataLossError(
            absl::StrCat("conv.w, head ", head, ": all taps are equal, so it has no spread"));
      }
      const auto count = static_cast<double>(taps);
      double mean = 0;
      for (const double x : w) mean += x / count;
      double squares = 0;
      for (const double x : w) squares += (x - mean) * (x - mean);
      const double spread = std::sqrt(squares / (config.unbiased_std ? count - 1 : count));
      const double gamma = tables.at("conv.gamma").const_data_ptr<float>()[head];
      const double beta = tables.at("conv.beta").const_data_ptr<float>()[head];
      const double scale = gamma / (spread + double{config.std_eps});
      for (double& x : w) x = scale * (x - mean) + beta;
    }
    for (int64_t j = 0; j < taps; ++j) {
      const double x = w[static_cast<size_t>(j)];
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
