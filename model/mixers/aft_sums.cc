#include "model/mixers/aft_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/softmax.h"
#include "model/kernels/ragged_batch.h"
#include "model/mixers/aft_parallel.h"

namespace aft {
namespace {

constexpr double kLowestExponent = -60;
const double kSmallestSum = std::exp(-30.0);
constexpr int64_t kExactElements = int64_t{1} << 25;  // of one temporary

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
  const BiasWeights e = ExpBias(bias, /*floor=*/0);  // 0 is what all older tokens have

  // [B, R, G, C - 1 + L, n]; unfold overlaps without a copy. Padded rows are cut off below.
  const at::Tensor padded =
      at::constant_pad_nd(operand, {0, 0, 0, 0, 0, tiles * length - tokens}, 0);
  const at::Tensor windows =
      padded.slice(1, 1, padded.size(1)).unfold(1, context - 1 + length, length).transpose(3, 4);
  const at::Tensor near =
      e.weights.to(gemm).unsqueeze(0).matmul(windows.to(gemm)).to(operand.scalar_type());

  // Tile r has everything before place 1 + r L as its older tokens.
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

at::Tensor Redo(const Quotient& quotient,
                absl::FunctionRef<at::Tensor(const at::Tensor& channels)> redo) {
  const at::Tensor channels =
      quotient.bad.flatten(0, -2).any(/*dim=*/0, /*keepdim=*/false).nonzero().squeeze(1);
  if (channels.size(0) == 0) return quotient.mean;
  return quotient.mean.index_copy(quotient.mean.dim() - 1, channels, redo(channels));
}

at::Tensor ExactMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias) {
  const at::Tensor spread_bias = bias.unsqueeze(3);
  const at::Tensor unseen = spread_bias.isneginf();
  const int64_t per_channel = k.size(0) * k.size(1) * bias.size(1) * bias.size(2);
  const int64_t step = std::max<int64_t>(1, kExactElements / std::max<int64_t>(1, per_channel));
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < k.size(3); begin += step) {
    const int64_t end = std::min(begin + step, k.size(3));
    const at::Tensor seen_k = k.slice(3, begin, end)
                                  .unsqueeze(2)
                                  .masked_fill(unseen, -std::numeric_limits<double>::infinity());
    // The difference of keys comes first: adding the bias to a large key would lose its digits.
    const at::Tensor max = seen_k.detach().amax(3, /*keepdim=*/true);
    const at::Tensor weights = at::softmax((seen_k - max) + spread_bias, 3);
    parts.push_back((weights * v.slice(3, begin, end).unsqueeze(2)).sum(3));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 3);
}

}  // namespace aft
