#include "model/train/forms/aft_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"
#include "model/kernels/ragged_batch.h"
#include "model/mixers/tables.h"

namespace aft {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();
constexpr double kLowestExponent = -60;
const double kSmallestSum = std::exp(-30.0);
constexpr int64_t kExactElements = int64_t{1} << 25;  // of one temporary

// k and v [P, N], bias [P or 1, L, N] -> [P, L].
at::Tensor ExactMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias) {
  const at::Tensor keys = k.unsqueeze(1);
  const at::Tensor max =
      keys.detach().masked_fill(bias.isneginf(), kUnseen).amax(2, /*keepdim=*/true);
  // The difference of keys comes first: adding the bias to a large key would lose its digits.
  return at::softmax((keys - max) + bias, 2).matmul(v.unsqueeze(2)).squeeze(2);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> Masked(const at::Tensor& k, const at::Tensor& v,
                                          const at::Tensor& mask) {
  if (!mask.defined()) return {k, v};
  const at::Tensor hidden = mask.le(kMaskedBelow).unsqueeze(2);
  return {(k + mask.to(k.scalar_type()).masked_fill(hidden.squeeze(2), 0).unsqueeze(2))
              .masked_fill(hidden, kEmptyKey),
          v.masked_fill(hidden, 0)};
}

at::Tensor WeightedValues(const at::Tensor& k, const at::Tensor& v, const at::Tensor& anchor) {
  const at::Tensor e = at::exp(at::clamp_min(k - anchor, kLowestExponent));
  return at::cat({e * v, e}, -1);
}

BiasWeights ExpBias(const at::Tensor& bias, double floor) {
  BiasWeights result;
  result.rise = at::clamp_min(bias.detach().amax(-1, /*keepdim=*/true), floor);
  result.weights = at::exp(bias - result.rise);
  return result;
}

at::Tensor PrefixSums(const at::Tensor& operand, const at::Tensor& bias, int64_t context,
                      at::ScalarType gemm) {
  const int64_t tokens = operand.size(1) - context;
  const int64_t length = bias.size(2);
  const int64_t tiles = (tokens + length - 1) / length;
  const BiasWeights e = ExpBias(bias, /*floor=*/0);  // 0 is the bias of all older tokens

  // [B, R, G, C - 1 + L, n]; unfold overlaps without a copy. Padded rows are cut off below.
  const at::Tensor padded =
      at::constant_pad_nd(operand, {0, 0, 0, 0, 0, tiles * length - tokens}, 0);
  const at::Tensor windows =
      padded.slice(1, 1, padded.size(1)).unfold(1, context - 1 + length, length).transpose(3, 4);
  const at::Tensor near =
      e.weights.to(gemm).unsqueeze(0).matmul(windows.to(gemm)).to(operand.scalar_type());

  // The older tokens of tile r are all tokens before place 1 + r L.
  at::Tensor older = padded.slice(1, 0, 1);
  if (tiles > 1) {
    const at::Tensor steps =
        padded.slice(1, 1, 1 + (tiles - 1) * length).unflatten(1, {tiles - 1, length}).sum(2);
    older = at::cat({older, steps}, 1).cumsum(1);
  }
  const at::Tensor sums = near + at::exp(-e.rise) * older.unsqueeze(3);
  return sums.transpose(2, 3).flatten(1, 2).slice(1, 0, tokens);
}

Quotient Divide(const at::Tensor& sums, int64_t keys, const at::Tensor& seen) {
  const int64_t columns = sums.size(-1);
  const at::Tensor den = sums.slice(-1, columns - keys, columns);
  at::Tensor num = sums.slice(-1, 0, columns - keys);
  Quotient result;
  const at::Tensor small = den.detach().lt(kSmallestSum);
  result.bad = small;
  if (seen.defined()) {
    result.bad = small.logical_and(seen);
    num = num.masked_fill(seen.logical_not(), 0);
  }
  result.mean = num / den.masked_fill(small, 1);
  return result;
}

at::Tensor Redo(const Quotient& quotient, const at::Tensor& k, const at::Tensor& v,
                absl::FunctionRef<at::Tensor()> bias) {
  // Columns [B, R, n] by flat index.
  const at::Tensor columns = quotient.bad.any(/*dim=*/2).flatten().nonzero().squeeze(1);
  if (columns.size(0) == 0) return quotient.mean;
  const at::Tensor biases = bias();
  const at::Tensor key_rows = k.transpose(2, 3).flatten(0, 2);
  const at::Tensor value_rows = v.transpose(2, 3).flatten(0, 2);
  const int64_t step = std::max<int64_t>(1, kExactElements / (biases.size(1) * biases.size(2)));
  std::vector<at::Tensor> parts;
  for (const at::Tensor& some : columns.split(step)) {
    const at::Tensor tile = some.floor_divide(k.size(3)).remainder(biases.size(0));
    parts.push_back(ExactMean(key_rows.index_select(0, some), value_rows.index_select(0, some),
                              biases.size(0) == 1 ? biases : biases.index_select(0, tile)));
  }
  const at::Tensor mean = quotient.mean.transpose(2, 3);
  return mean.flatten(0, 2)
      .index_copy(0, columns, at::cat(parts))
      .view(mean.sizes())
      .transpose(2, 3);
}

at::Tensor TileMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias, double floor,
                    const at::Tensor& live, at::ScalarType gemm) {
  const at::Tensor anchor = k.detach().amax(2, /*keepdim=*/true);
  const at::Tensor sums = ExpBias(bias, floor)
                              .weights.to(gemm)
                              .unsqueeze(0)
                              .matmul(WeightedValues(k, v, anchor).to(gemm))
                              .to(k.scalar_type());
  at::Tensor seen;
  if (live.defined()) {
    seen = bias.isneginf().logical_not().to(at::kFloat).matmul(live.to(at::kFloat)).gt(0);
  }
  return Redo(Divide(sums, k.size(3), seen), k, v, [&bias]() { return bias; });
}

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
