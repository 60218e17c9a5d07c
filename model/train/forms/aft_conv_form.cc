#include <algorithm>
#include <limits>
#include <tuple>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softmax.h"
#include "model/kernels/ragged_batch.h"
#include "model/mixers/tables.h"
#include "model/train/forms/aft_sums.h"
#include "model/train/forms/forms.h"

namespace aft {
namespace {

constexpr int64_t kMinConvTile = 64;

// w(t, t') [h, T, T] of a bidirectional filter: 0 outside the filter.
at::Tensor PairBias(const MixerConfig& config, const at::Tensor& filter, int64_t tokens,
                    int64_t grid_width) {
  const int64_t s = config.window;
  const at::Tensor place = at::arange(tokens);
  const auto tap = [s](const at::Tensor& x) {  // [query, key]
    return x.unsqueeze(0) - x.unsqueeze(1) + (s - 1) / 2;
  };
  const auto inside = [s](const at::Tensor& x) { return x.ge(0).logical_and(x.lt(s)); };
  at::Tensor index = tap(place);
  at::Tensor near = inside(index);
  if (config.grid) {
    const at::Tensor row = tap(place.floor_divide(grid_width));
    const at::Tensor column = tap(place.remainder(grid_width));
    near = inside(row).logical_and(inside(column));
    index = row * s + column;
  }
  return filter.index_select(1, index.clamp(0, filter.size(1) - 1).flatten())
      .view({filter.size(0), tokens, tokens})
      .masked_fill(near.logical_not(), 0);
}

// k [B, T, h], v [B, T, h, n], bias [h, T, T], -inf where a query does not see a key ->
// [B, T, h, n].
at::Tensor PairMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias) {
  const at::Tensor seen_k = k.transpose(1, 2).unsqueeze(2).masked_fill(
      bias.isneginf(), -std::numeric_limits<double>::infinity());
  const at::Tensor max = seen_k.detach().amax(3, /*keepdim=*/true);
  return at::softmax((seen_k - max) + bias, 3).matmul(v.transpose(1, 2)).transpose(1, 2);
}

// Computes PairMean as one product of [h, T, T] with the keys and values of all texts side by side.
// The keys and values of a text are then in memory once and not T times. REQUIRES: bias has no
// -inf.
at::Tensor DenseMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                     const TrainFormOptions& options) {
  const at::Tensor keys = k.unsqueeze(3);
  const at::Tensor operand = WeightedValues(keys, v, keys.detach().amax(1, /*keepdim=*/true));
  const at::Tensor columns = operand.permute({2, 1, 0, 3}).flatten(2);  // [h, T, B (n + 1)]
  const at::ScalarType gemm = options.GemmType(k);
  const at::Tensor sums = ExpBias(bias, -std::numeric_limits<double>::infinity())
                              .weights.to(gemm)
                              .matmul(columns.to(gemm))
                              .to(k.scalar_type())
                              .unflatten(2, {operand.size(0), operand.size(3)})
                              .permute({2, 1, 0, 3});
  // If all tokens of a text are masked, their keys are equal and their values are 0. So the sums
  // are not small, and the mean is 0.
  const Quotient quotient = Divide(sums, 1, /*seen=*/at::Tensor());
  return quotient.bad.any().item<bool>() ? PairMean(k, v, bias) : quotient.mean;
}

at::Tensor CausalMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& filter,
                      const TrainFormOptions& options) {
  const int64_t tokens = k.size(1);
  const int64_t context = filter.size(1);  // one place for all older tokens, and window - 1 places
  const auto bias = [&](int64_t before, int64_t length) {
    return CausalBandBias(filter.flip(1).unsqueeze(1).expand({-1, length, -1}), before, length,
                          k.options());
  };
  const at::Tensor keys = at::constant_pad_nd(k, {0, 0, context, 0}, kEmptyKey).unsqueeze(3);
  const at::Tensor values = at::constant_pad_nd(v, {0, 0, 0, 0, context, 0}, 0);
  const at::Tensor anchor = keys.detach().amax(1, /*keepdim=*/true);
  at::Tensor seen;
  if (options.mask.defined()) {
    seen = std::get<0>(options.mask.gt(kMaskedBelow).to(at::kFloat).cummax(1))
               .gt(0)
               .unsqueeze(2)
               .unsqueeze(3);
  }
  const int64_t length = std::min(tokens, std::max(kMinConvTile, context));
  const Quotient quotient =
      Divide(PrefixSums(WeightedValues(keys, values, anchor),
                        bias(context - 1, length).unsqueeze(0), context, options.GemmType(k)),
             1, seen);
  return quotient.bad.any().item<bool>() ? PairMean(k, v, bias(0, tokens)) : quotient.mean;
}

}  // namespace

at::Tensor AftConvForm(const MixerConfig& config, const at::Tensor& packed,
                       const MixerTables& tables, const TrainFormOptions& options) {
  const int64_t heads = config.heads;
  const int64_t hid = (packed.size(2) - heads) / 2;
  const auto qkv = packed.split_with_sizes({hid, heads, hid}, 2);
  const auto [k, values] = Masked(qkv[1], qkv[2], options.mask);
  const at::Tensor v = values.unflatten(2, {heads, hid / heads});
  const at::Tensor filter = AppliedConvFilter(config, tables);
  const at::Tensor mean =
      config.causal
          ? CausalMean(k, v, filter, options)
          : DenseMean(k, v, PairBias(config, filter, packed.size(1), options.grid_width), options);
  return at::sigmoid(qkv[0]) * mean.flatten(2);
}

}  // namespace aft
