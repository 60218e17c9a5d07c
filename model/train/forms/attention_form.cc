#include <cmath>
#include <limits>
#include <optional>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/softplus.h"
#include "ATen/ops/tanh.h"
#include "model/kernels/ragged_batch.h"
#include "model/train/forms/forms.h"

namespace aft {
namespace {

constexpr double kMaskedScore = -std::numeric_limits<double>::infinity();
constexpr double kShortest = 1e-6;

// [B, T, h * n] -> [B, h, T, n].
at::Tensor Heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(2, {heads, x.size(2) / heads}).transpose(1, 2);
}

// [B, h, T, n] -> [B, T, h * n].
at::Tensor Join(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

// The mask as scores of keys, [B, 1, 1, T]; undefined without a mask.
at::Tensor KeyScores(const TrainFormOptions& options, at::ScalarType type) {
  if (!options.mask.defined()) return {};
  return options.mask.to(type)
      .masked_fill(options.mask.le(kMaskedBelow), kMaskedScore)
      .unsqueeze(1)
      .unsqueeze(2);
}

// [T, T]: true in the future.
at::Tensor Future(int64_t tokens) {
  const at::Tensor place = at::arange(tokens);
  return place.unsqueeze(0).gt(place.unsqueeze(1));
}

// softmax over the last dimension of scores that may be -inf. Rows of -inf only give zeros.
at::Tensor SoftmaxOfSeen(const at::Tensor& scores) {
  const at::Tensor idle = scores.isneginf().all(-1, /*keepdim=*/true);
  return at::softmax(scores.masked_fill(idle, 0), -1).masked_fill(idle, 0);
}

at::Tensor Drop(const at::Tensor& weights, const TrainFormOptions& options) {
  return options.dropout > 0 ? at::dropout(weights, options.dropout, /*train=*/true) : weights;
}

// Turns scores [B, h, T, T] into outputs [B, T, hid].
at::Tensor Mix(const MixerConfig& config, at::Tensor scores, const at::Tensor& v,
               const TrainFormOptions& options) {
  if (config.causal) scores = scores.masked_fill(Future(scores.size(3)), kMaskedScore);
  const at::Tensor keys = KeyScores(options, scores.scalar_type());
  const at::Tensor weights =
      keys.defined() ? SoftmaxOfSeen(scores + keys) : at::softmax(scores, -1);
  return Join(Drop(weights, options).to(v.scalar_type()).matmul(v)).to(scores.scalar_type());
}

// softmax(scale q.k) v of heads [B, h, T, n] by LibTorch's fused kernel -> [B, T, hid].
at::Tensor Fused(const MixerConfig& config, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v, std::optional<double> scale,
                 const TrainFormOptions& options) {
  at::Tensor keys = KeyScores(options, q.scalar_type());
  if (!keys.defined()) {
    return Join(at::scaled_dot_product_attention(q, k, v, std::nullopt, options.dropout,
                                                 config.causal, scale));
  }
  if (config.causal && q.size(2) > 1) {
    keys = keys.expand({-1, -1, q.size(2), -1}).masked_fill(Future(q.size(2)), kMaskedScore);
  }
  const at::Tensor idle = keys.isneginf().all(3, /*keepdim=*/true);
  return Join(at::scaled_dot_product_attention(q, k, v, keys.masked_fill(idle, 0), options.dropout,
                                               /*is_causal=*/false, scale)
                  .masked_fill(idle, 0));
}

}  // namespace

at::Tensor DotProductForm(const MixerConfig& config, const at::Tensor& packed,
                          const TrainFormOptions& options) {
  const auto qkv = packed.to(options.GemmType(packed)).chunk(3, 2);
  return Fused(config, Heads(qkv[0], config.heads), Heads(qkv[1], config.heads),
               Heads(qkv[2], config.heads), std::nullopt, options)
      .to(packed.scalar_type());
}

at::Tensor CosineForm(const MixerConfig& config, const at::Tensor& packed,
                      const TrainFormOptions& options) {
  const int64_t hid = (packed.size(2) - config.heads) / 3;
  const auto parts = packed.split_with_sizes({hid, hid, hid, config.heads}, 2);
  const auto direction = [&config](const at::Tensor& x) {
    const at::Tensor heads = Heads(x, config.heads);
    return heads /
           at::clamp_min(at::linalg_vector_norm(heads, 2, {3}, /*keepdim=*/true), kShortest);
  };
  const at::Tensor strength = Heads(at::softplus(parts[3]), config.heads);  // [B, h, T, 1]
  const at::ScalarType gemm = options.GemmType(packed);
  return Fused(config, (strength * direction(parts[0])).to(gemm), direction(parts[1]).to(gemm),
               Heads(parts[2], config.heads).to(gemm), 1.0, options)
      .to(packed.scalar_type());
}

at::Tensor AdditiveForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options) {
  const int64_t keys = config.heads * config.score_width;
  const auto parts = packed.split_with_sizes({keys, keys, packed.size(2) - 2 * keys}, 2);
  const at::Tensor q = Heads(parts[0], config.heads).unsqueeze(3);
  const at::Tensor k = Heads(parts[1], config.heads).unsqueeze(2);
  // [B, h, T, T, a] . [h, 1, a, 1]
  const at::Tensor scores =
      at::tanh(q + k).matmul(tables.at("score.v").unsqueeze(1).unsqueeze(3)).squeeze(4);
  return Mix(config, scores, Heads(parts[2], config.heads).to(options.GemmType(packed)), options);
}

at::Tensor LocationForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options) {
  const at::ScalarType gemm = options.GemmType(packed);
  const auto qv = packed.to(gemm).chunk(2, 2);
  const at::Tensor rows = tables.at("location.weight").slice(0, 0, packed.size(1)).to(gemm);
  const at::Tensor scores = qv[0].matmul(rows.t()).to(packed.scalar_type()).unsqueeze(1);
  return Mix(config, scores, qv[1].unsqueeze(1), options);
}

at::Tensor BlockLocalForm(const MixerConfig& config, const at::Tensor& packed,
                          const TrainFormOptions& options) {
  const int64_t tokens = packed.size(1);
  const int64_t b = config.block_size;
  const int64_t blocks = (tokens + b - 1) / b;
  const int64_t padding = blocks * b - tokens;
  const int64_t after = config.causal ? 0 : b;  // keys after the own block
  const int64_t span = 2 * b + after;
  const auto qkv = packed.to(options.GemmType(packed)).chunk(3, 2);
  const at::Tensor q = Heads(qkv[0], config.heads);
  const at::Tensor k = Heads(qkv[1], config.heads);
  const at::Tensor v = Heads(qkv[2], config.heads);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));

  // [B, h, R, n, span]: the keys or values that each block sees of itself and its neighbours.
  const auto around = [&](const at::Tensor& x) {
    return at::constant_pad_nd(x, {0, 0, b, padding + after}).unfold(2, span, b);
  };
  const at::Tensor rows = at::constant_pad_nd(q, {0, 0, 0, padding}).unflatten(2, {blocks, b});
  at::Tensor scores = (rows.matmul(around(k)) * scale).to(packed.scalar_type());

  const at::Tensor query = at::arange(blocks * b).view({blocks, b, 1});
  const at::Tensor key = at::arange(blocks).view({blocks, 1, 1}) * b + (at::arange(span) - b);
  // Token 0 has a column of its own.
  at::Tensor unseen = key.lt(config.global_token ? 1 : 0).logical_or(key.ge(tokens));
  if (config.causal) unseen = unseen.logical_or(key.gt(query));
  scores = scores.masked_fill(unseen, kMaskedScore);
  const at::Tensor mask = KeyScores(options, packed.scalar_type());  // [B, 1, 1, T]
  if (mask.defined()) {
    scores =
        scores + at::constant_pad_nd(mask, {b, padding + after}).unfold(3, span, b).transpose(2, 3);
  }
  if (config.global_token) {
    at::Tensor first = (rows.matmul(k.slice(2, 0, 1).unsqueeze(2).transpose(3, 4)) * scale)
                           .to(packed.scalar_type());
    if (mask.defined()) first = first + mask.slice(3, 0, 1).unsqueeze(4);
    scores = at::cat({scores, first}, 4);
  }
  const at::Tensor weights = Drop(SoftmaxOfSeen(scores), options).to(v.scalar_type());
  at::Tensor y = weights.slice(4, 0, span).matmul(around(v).transpose(3, 4));
  if (config.global_token) {
    y = y + weights.slice(4, span, span + 1) * v.slice(2, 0, 1).unsqueeze(2);
  }
  y = Join(y.flatten(2, 3).slice(2, 0, tokens));
  if (config.global_token && !config.causal) {
    const at::Tensor first = Fused(config, q.slice(2, 0, 1), k, v, std::nullopt, options);
    y = at::cat({first, y.slice(1, 1, tokens)}, 1);
  }
  return y.to(packed.scalar_type());
}

}  // namespace aft
