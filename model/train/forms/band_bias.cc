#include "model/train/forms/band_bias.h"

#include <algorithm>
#include <limits>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"

namespace aft {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

// w.full or w.u w.v^T: [T, T], [query, key].
at::Tensor DenseTable(const MixerConfig& config, const MixerTables& tables) {
  if (config.bias == BiasForm::kFull) return tables.at("w.full");
  return tables.at("w.u").matmul(tables.at("w.v").t());
}

// Entries [row, column[row][j]] of x, 0 where the column does not exist. column [R, J] int64.
at::Tensor Pick(const at::Tensor& x, const at::Tensor& column) {
  const at::Tensor exists = column.ge(0).logical_and(column.lt(x.size(1)));
  return x.gather(1, column.clamp(0, x.size(1) - 1)).masked_fill(exists.logical_not(), 0);
}

// Rows for positions beyond the table: the last one's, by whatever `last` makes of it, or none.
at::Tensor Extend(const MixerConfig& config, const at::Tensor& rows, int64_t tokens,
                  const at::Tensor& clamped) {
  const int64_t beyond = tokens - rows.size(0);
  if (beyond <= 0) return rows.slice(0, 0, tokens);
  AFT_CHECK(config.length_policy != LengthPolicy::kError);
  return config.length_policy == LengthPolicy::kClamp
             ? at::cat({rows, clamped}, 0)
             : at::constant_pad_nd(rows, {0, 0, 0, beyond}, 0);
}

}  // namespace

at::Tensor CausalBandBias(const at::Tensor& rows, int64_t window, int64_t context, int64_t length,
                          const at::TensorOptions& options) {
  const int64_t columns = context + length;
  const at::Tensor offset =
      at::arange(length).unsqueeze(1) + context - at::arange(columns).unsqueeze(0);  // t - t'
  at::Tensor bias = at::zeros({1, length, columns}, options);
  if (window > 0) {
    const at::Tensor index =
        offset.clamp(0, window - 1).unsqueeze(0).expand({rows.size(0), length, columns});
    bias = at::where(offset.lt(window), rows.gather(2, index), bias);
  }
  return bias.masked_fill(offset.lt(0), kUnseen);
}

at::Tensor LocalBand(const MixerConfig& config, const MixerTables& tables, int64_t tokens) {
  if (config.window == 0) return {};
  at::Tensor band;
  if (config.bias == BiasForm::kBand) {
    band = tables.at("w.band");
    if (config.band_rows == 0) return band;
  } else {
    const at::Tensor dense = DenseTable(config, tables);
    const int64_t columns = config.causal ? config.window : 2 * config.window - 1;
    const at::Tensor offset = at::arange(columns) - (config.causal ? 0 : config.window - 1);
    band = Pick(dense, at::arange(dense.size(0)).unsqueeze(1) - offset);
  }
  const int64_t rows = band.size(0);
  return Extend(config, band, tokens,
                band.slice(0, rows - 1, rows).expand({std::max<int64_t>(0, tokens - rows), -1}));
}

at::Tensor DenseBias(const MixerConfig& config, const MixerTables& tables, int64_t tokens) {
  const at::Tensor query = at::arange(tokens).unsqueeze(1);
  const at::Tensor key = at::arange(tokens).unsqueeze(0);
  at::Tensor bias;
  if (config.kind == MixerKind::kAftLocal) {
    const at::Tensor band = LocalBand(config, tables, tokens);
    const at::Tensor column = query - key + (config.causal ? 0 : config.window - 1);
    bias = Pick(band.expand({tokens, -1}), column);
  } else {
    at::Tensor table = DenseTable(config, tables);
    const int64_t rows = table.size(0);
    if (tokens > rows) {
      // The last row by offset: its column T - 1 - (t - t').
      const at::Tensor column = key - (query.slice(0, rows, tokens) - (rows - 1));
      const at::Tensor last = table.slice(0, rows - 1, rows).expand({tokens - rows, -1});
      table = at::constant_pad_nd(table, {0, tokens - rows}, 0);
      bias = Extend(config, table, tokens, Pick(last, column));
    } else {
      bias = table.slice(0, 0, tokens).slice(1, 0, tokens);
    }
  }
  return config.causal ? bias.masked_fill(key.gt(query), kUnseen) : bias;
}

}  // namespace aft
