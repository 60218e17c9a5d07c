#include <limits>
#include <tuple>

#include "ATen/TensorOperators.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softmax.h"
#include "model/kernels/ragged_batch.h"
#include "model/train/forms/aft_sums.h"
#include "model/train/forms/band_bias.h"
#include "model/train/forms/forms.h"

namespace aft {
namespace {

// k, v [B, T, hid], bias [T, T].
at::Tensor DenseMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                     const TrainFormOptions& options) {
  const at::ScalarType gemm =
      options.gemm == at::ScalarType::Undefined ? k.scalar_type() : options.gemm;
  const at::Tensor anchor = k.detach().amax(1, /*keepdim=*/true);
  const BiasWeights e = ExpBias(bias, -std::numeric_limits<double>::infinity());
  const at::Tensor sums =
      e.weights.to(gemm).matmul(WeightedValues(k, v, anchor).to(gemm)).to(k.scalar_type());
  at::Tensor seen;
  if (options.mask.defined()) {
    const at::Tensor live = options.mask.gt(kMaskedBelow).to(at::kFloat).unsqueeze(2);
    seen = bias.isneginf().logical_not().to(at::kFloat).matmul(live).gt(0);
  }
  const auto one_tile = [](const at::Tensor& x) { return x.defined() ? x.unsqueeze(1) : x; };
  return Redo(Divide(one_tile(sums), k.size(2), one_tile(seen)), one_tile(k), one_tile(v),
              [&bias]() { return bias.unsqueeze(0); })
      .squeeze(1);
}

}  // namespace

at::Tensor AftDenseForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options) {
  const auto qkv = packed.chunk(3, 2);
  const auto [k, v] = Masked(qkv[1], qkv[2], options.mask);
  const at::Tensor bias = DenseBias(config, tables, packed.size(1));
  const at::Tensor mean =
      bias.defined() ? DenseMean(k, v, bias, options)
                     : (at::softmax(k, 1) * v).sum(1, /*keepdim=*/true);  // every token the same
  return at::sigmoid(qkv[0]) * mean;
}

}  // namespace aft
