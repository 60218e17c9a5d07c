#include <limits>
#include <tuple>

#include "ATen/TensorOperators.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softmax.h"
#include "model/kernels/ragged_batch.h"
#include "model/train/forms/aft_sums.h"
#include "model/train/forms/forms.h"

namespace aft {

at::Tensor AftDenseForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options) {
  const auto qkv = packed.chunk(3, 2);
  const auto [k, v] = Masked(qkv[1], qkv[2], options.mask);
  const at::Tensor bias = DenseBias(config, tables, packed.size(1));
  if (!bias.defined()) {  // every token sees all tokens in the same way
    return at::sigmoid(qkv[0]) * (at::softmax(k, 1) * v).sum(1, /*keepdim=*/true);
  }
  at::Tensor live;
  if (options.mask.defined()) live = options.mask.gt(kMaskedBelow).unsqueeze(1).unsqueeze(3);
  return at::sigmoid(qkv[0]) * TileMean(k.unsqueeze(1), v.unsqueeze(1), bias.unsqueeze(0),
                                        -std::numeric_limits<double>::infinity(), live,
                                        options.GemmType(packed))
                                   .squeeze(1);
}

}  // namespace aft
