#include "model/train/forms/band_bias.h"

#include <limits>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"
#include "model/mixers/tables.h"

namespace aft {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

}  // namespace

at::Tensor CausalBandBias(const at::Tensor& band, int64_t context, int64_t length,
                          const at::TensorOptions& options) {
  const int64_t columns = context + length;
  const at::Tensor offset =
      at::arange(length).unsqueeze(1) + context - at::arange(columns).unsqueeze(0);  // t - t'
  at::Tensor bias = at::zeros({1, length, columns}, options);
  if (band.defined()) {
    const int64_t window = band.size(2);
    const at::Tensor column = (window - 1 - offset)
                                  .clamp(0, window - 1)
                                  .unsqueeze(0)
                                  .expand({band.size(0), length, columns});
    bias = at::where(offset.lt(window), band.gather(2, column), bias);
  }
  return bias.masked_fill(offset.lt(0), kUnseen);
}

at::Tensor BandFor(const MixerConfig& config, const MixerTables& tables, int64_t tokens) {
  const AftBand band = FoldAftBand(config, tables);
  if (band.window == 0 || config.band_rows == 0) return band.w;
  AFT_CHECK(tokens <= config.band_rows || config.length_policy != LengthPolicy::kError);
  return band.w.index_select(0, at::arange(tokens).clamp_max(band.w.size(0) - 1));
}

at::Tensor DenseBias(const MixerConfig& config, const MixerTables& tables, int64_t tokens) {
  const at::Tensor band = BandFor(config, tables, tokens);
  if (!band.defined()) return band;
  const at::Tensor query = at::arange(tokens).unsqueeze(1);
  const at::Tensor key = at::arange(tokens).unsqueeze(0);
  const int64_t window = config.causal ? band.size(1) : (band.size(1) + 1) / 2;
  const at::Tensor column = key - query + window - 1;
  const at::Tensor outside = column.lt(0).logical_or(column.ge(band.size(1)));
  const at::Tensor bias = band.expand({tokens, -1})
                              .gather(1, column.clamp(0, band.size(1) - 1))
                              .masked_fill(outside, 0);
  return config.causal ? bias.masked_fill(key.gt(query), kUnseen) : bias;
}

}  // namespace aft
