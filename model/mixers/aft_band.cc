#include <algorithm>
#include <cmath>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/aminmax.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/empty.h"
#include "absl/status/status.h"
#include "model/config/kinds.h"
#include "model/kernels/aft/aft.h"
#include "model/mixers/tables.h"

namespace aft {
namespace {

int64_t Window(const MixerConfig& config) {
  const KindSpec& spec = SpecOf(config.kind);
  const int64_t window = spec.bias_window == nullptr ? 0 : spec.bias_window(config);
  const bool by_offset = config.bias == BiasForm::kBand &&
                         (config.band_rows == 0 || config.length_policy != LengthPolicy::kError);
  // If there are no positions beyond the table, no offset reaches beyond its rows.
  return by_offset ? window : std::min(window, config.band_rows);
}

// The columns of a band, from the earliest key to the latest.
int64_t Columns(const MixerConfig& config, int64_t window) {
  return config.causal ? window : 2 * window - 1;
}

// Returns the product of u [rows, rank] and the transpose of v [columns, rank].
using Product = at::Tensor (*)(const at::Tensor& u, const at::Tensor& v);

// This product is differentiable. The order of its sums depends on the processor.
at::Tensor LibTorchProduct(const at::Tensor& u, const at::Tensor& v) { return u.matmul(v.t()); }

// This product has the same bits on every processor. All sums have one order, and a product of two
// floats is exact in double, so it makes no difference whether it is fused with the addition.
at::Tensor OrderedProduct(const at::Tensor& u, const at::Tensor& v) {
  const at::Tensor by_rank = v.t().contiguous();  // [rank, columns]
  const int64_t rank = by_rank.size(0);
  const int64_t columns = by_rank.size(1);
  at::Tensor w = at::empty({u.size(0), columns}, at::kFloat);
  std::vector<double> sums(static_cast<size_t>(columns));
  for (int64_t row = 0; row < u.size(0); ++row) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t k = 0; k < rank; ++k) {
      const double factor = u.const_data_ptr<float>()[row * rank + k];
      const float* const factors = by_rank.const_data_ptr<float>() + k * columns;
      for (size_t j = 0; j < sums.size(); ++j) sums[j] += factor * factors[j];
    }
    std::transform(sums.begin(), sums.end(), w.mutable_data_ptr<float>() + row * columns,
                   [](double sum) { return static_cast<float>(sum); });
  }
  return w;
}

// The band of a table [query, key], with 0 for keys that the table does not have. It is computed in
// slabs of rows, because a product of factors may be far larger than its band.
at::Tensor BandOfPairs(const MixerConfig& config, const MixerTables& tables, Product product,
                       int64_t window) {
  constexpr int64_t kSlab = 256;
  const int64_t columns = Columns(config, window);
  const int64_t rows = config.band_rows;
  std::vector<at::Tensor> slabs;
  for (int64_t begin = 0; begin < rows; begin += kSlab) {
    const int64_t end = std::min(begin + kSlab, rows);
    const int64_t first = begin - window + 1;  // the keys that the slab's rows see
    const int64_t last = end - window + columns;
    const int64_t from = std::max<int64_t>(first, 0);
    const int64_t to = std::min(last, rows);
    const at::Tensor pairs =
        config.bias == BiasForm::kFull
            ? tables.at("w.full").slice(0, begin, end).slice(1, from, to)
            : product(tables.at("w.u").slice(0, begin, end), tables.at("w.v").slice(0, from, to));
    // If rows are read as one column longer, each starts one column later than the one before.
    const int64_t length = end - begin;
    const at::Tensor flat = at::constant_pad_nd(pairs, {from - first, last - to}).flatten();
    slabs.push_back(at::constant_pad_nd(flat, {0, length})
                        .view({length, last - first + 1})
                        .slice(1, 0, columns));
  }
  return at::cat(slabs);
}

AftBand FoldWith(Product product, const MixerConfig& config, const MixerTables& tables) {
  AftBand band;
  band.window = Window(config);
  if (band.window == 0) return band;
  if (config.bias == BiasForm::kBand) {
    // The stored band is by offset t - t', so the earliest key is last.
    const at::Tensor& stored = tables.at("w.band");
    const int64_t centre = config.causal ? 0 : config.window - 1;
    const int64_t first = config.causal ? centre : centre - band.window + 1;
    band.w = stored.slice(1, first, first + Columns(config, band.window)).flip(1);
  } else {
    band.w = BandOfPairs(config, tables, product, band.window);
  }
  if (config.length_policy == LengthPolicy::kZero) {
    band.w = at::constant_pad_nd(band.w, {0, 0, 0, 1});
  }
  return band;
}

int64_t BandRows(const MixerConfig& config) {
  return std::max<int64_t>(config.band_rows, 1) +  // 0: one row for all positions
         (config.length_policy == LengthPolicy::kZero ? 1 : 0);
}

}  // namespace

int64_t AftBandFloats(const MixerConfig& config) {
  const int64_t window = Window(config);
  return window == 0 ? 0 : BandRows(config) * Columns(config, window);
}

int64_t AftTableFloats(const MixerConfig& config) {
  const int64_t window = Window(config);
  if (window == 0) return 0;
  return BandRows(config) * (Columns(config, window) + 2 * kernels::AftBias::kPadding);
}

AftBand FoldAftBand(const MixerConfig& config, const MixerTables& tables) {
  return FoldWith(LibTorchProduct, config, tables);
}

absl::StatusOr<AftBand> CheckedAftBand(const MixerConfig& config, const MixerTables& tables) {
  AftBand band = FoldWith(OrderedProduct, config, tables);
  if (config.bias != BiasForm::kFactors || !band.w.defined()) return band;
  const auto [least, greatest] = at::aminmax(band.w);
  if (std::isfinite(least.item<float>()) && std::isfinite(greatest.item<float>())) return band;
  return absl::DataLossError("w.u, w.v: a bias is not finite");
}

}  // namespace aft
