#include "model/mixers/aft_band.h"

#include <algorithm>

#include "ATen/ops/mv.h"

namespace aft {
namespace {

// Offsets that have a bias. Without positions beyond the table, no offset reaches its rows.
int64_t EffectiveWindow(const MixerConfig& config) {
  switch (config.kind) {
    case MixerKind::kAftLocal: {
      const bool by_offset =
          config.bias == BiasForm::kBand &&
          (config.band_rows == 0 || config.length_policy != LengthPolicy::kError);
      return by_offset ? config.window : std::min(config.window, config.band_rows);
    }
    case MixerKind::kAftFull:
      return config.band_rows;
    default:
      return 0;
  }
}

// Biases of row t of the table for keys [first, end), all of which it has.
void CopyRow(const MixerConfig& config, const MixerTables& tables, int64_t t, int64_t first,
             int64_t end, float* to) {
  switch (config.bias) {
    case BiasForm::kBand: {
      const int64_t columns = config.causal ? config.window : 2 * config.window - 1;
      const int64_t centre = config.causal ? 0 : config.window - 1;
      const float* row = tables.at("w.band").const_data_ptr<float>() + t * columns + centre;
      for (int64_t key = first; key < end; ++key) *to++ = row[t - key];
      return;
    }
    case BiasForm::kFull: {
      const float* row = tables.at("w.full").const_data_ptr<float>() + t * config.band_rows;
      std::copy(row + first, row + end, to);
      return;
    }
    case BiasForm::kFactors: {
      const at::Tensor w =
          at::mv(tables.at("w.v").slice(0, first, end), tables.at("w.u").select(0, t));
      std::copy_n(w.const_data_ptr<float>(), end - first, to);
      return;
    }
  }
}

}  // namespace

AftBand FoldAftBand(const MixerConfig& config, const MixerTables& tables) {
  AftBand band;
  band.causal = config.causal;
  band.window = EffectiveWindow(config);
  if (band.window == 0) return band;
  const int64_t columns = config.causal ? band.window : 2 * band.window - 1;
  const int64_t rows = std::max<int64_t>(config.band_rows, 1);
  band.rows = rows + (config.length_policy == LengthPolicy::kZero ? 1 : 0);
  band.w.assign(static_cast<size_t>(band.rows * columns), 0.0F);
  for (int64_t t = 0; t < rows; ++t) {
    int64_t first = t - band.window + 1;
    int64_t end = first + columns;
    float* row = band.w.data() + t * columns;
    if (config.bias != BiasForm::kBand) {
      row += std::max<int64_t>(-first, 0);
      first = std::max<int64_t>(first, 0);
      end = std::min(end, rows);
    }
    CopyRow(config, tables, t, first, end, row);
  }
  return band;
}

kernels::AftBias FoldAftBias(const MixerConfig& config, const MixerTables& tables) {
  const AftBand band = FoldAftBand(config, tables);
  if (band.window == 0) {
    if (config.causal) return {};
    // The bidirectional kernel needs the current token's place between those before and after it.
    constexpr float kNone = 0;
    return {&kNone, 1, 1, /*only_past=*/false};
  }
  return {band.w.data(), band.rows, band.window, band.causal};
}

}  // namespace aft
