#include "model/mixers/attention_train.h"

#include <optional>

#include "ATen/ops/scaled_dot_product_attention.h"

namespace aft {
namespace {

// [B, T, h * n] -> [B, h, T, n].
at::Tensor Heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

// [B, h, T, n] -> [B, T, h * n].
at::Tensor Join(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

at::ScalarType GemmType(const at::Tensor& packed, const TrainFormOptions& options) {
  return options.gemm == at::ScalarType::Undefined ? packed.scalar_type() : options.gemm;
}

}  // namespace

at::Tensor DotProductTrain(const MixerConfig& config, const at::Tensor& packed,
                           const TrainFormOptions& options) {
  const auto qkv = packed.to(GemmType(packed, options)).chunk(3, 2);
  const at::Tensor y = at::scaled_dot_product_attention(
      Heads(qkv[0], config.heads), Heads(qkv[1], config.heads), Heads(qkv[2], config.heads),
      std::nullopt, /*dropout_p=*/0, config.causal);
  return Join(y).to(packed.scalar_type());
}

}  // namespace aft
