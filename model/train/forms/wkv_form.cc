#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/eye.h"
#include "ATen/ops/full.h"
#include "ATen/ops/linalg_solve_triangular.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/maximum.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/tril.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "model/train/forms/forms.h"

namespace aft {
namespace {

// Tokens that are computed at once. In wkv7 a product of as many decays, each at least 0.545, is
// above 6e-5, so that numbers may be divided by it.
constexpr int64_t kChunk = 16;

// The sums of wkv4 before a chunk's first token; each [B, 1, hid]. `max` is a constant: the
// gradients go through the other two.
struct Sums {
  at::Tensor num, den, max;
};

// Adds, for each of the rows, tokens with these scores [B, rows, tokens, hid] and values [B, 1,
// tokens, hid] to sums that are scaled by e^shift [rows, hid].
Sums Add(const Sums& sums, const at::Tensor& shift, const at::Tensor& scores,
         const at::Tensor& values) {
  const at::Tensor old_score = sums.max + shift;
  const at::Tensor max = at::maximum(old_score, scores.amax(2)).detach();
  const at::Tensor old_weight = (old_score - max).exp();
  const at::Tensor weights = (scores - max.unsqueeze(2)).exp();
  return {old_weight * sums.num + (weights * values).sum(2), old_weight * sums.den + weights.sum(2),
          max};
}

}  // namespace

at::Tensor Wkv4Form(const at::Tensor& packed, const MixerTables& tables,
                    const TrainFormOptions& options) {
  const std::vector<at::Tensor> rkv = packed.chunk(3, 2);
  const int64_t batch = packed.size(0);
  const int64_t tokens = packed.size(1);
  const int64_t hid = rkv[0].size(2);
  const auto& type = packed.options();
  const at::Tensor decay = -tables.at("decay").exp();  // a logarithm, of a token
  const at::Tensor bonus = tables.at("bonus");
  Sums sums = {at::zeros({batch, 1, hid}, type), at::zeros({batch, 1, hid}, type),
               at::full({batch, 1, hid}, kEmptyWkv4Max, type)};
  if (options.carry != nullptr) {
    const at::Tensor carried = options.carry->sums.to(packed.scalar_type());
    sums = {carried.slice(1, 0, 1), carried.slice(1, 1, 2), carried.slice(1, 2, 3)};
  }
  std::vector<at::Tensor> means;
  for (int64_t first = 0; first < tokens; first += kChunk) {
    const int64_t length = std::min(kChunk, tokens - first);
    const at::Tensor k = rkv[1].slice(1, first, first + length).unsqueeze(1);
    const at::Tensor v = rkv[2].slice(1, first, first + length).unsqueeze(1);
    const at::Tensor t = at::arange(length, type);
    const at::Tensor age = (t.unsqueeze(1) - t).unsqueeze(2);  // of a key, [t, key, 1]
    const at::Tensor bias = at::where(age.eq(0), bonus, (age - 1) * decay)
                                .masked_fill(age.lt(0), -std::numeric_limits<double>::infinity());
    const Sums seen = Add(sums, t.unsqueeze(1) * decay, k + bias, v);
    means.push_back(seen.num / seen.den);
    const at::Tensor left = (static_cast<double>(length) - 1 - t).unsqueeze(1) * decay;
    sums = Add(sums, static_cast<double>(length) * decay.unsqueeze(0), k + left, v);
  }
  if (options.carry != nullptr) {
    options.carry->sums = at::cat({sums.num, sums.den, sums.max}, 1).detach().to(at::kFloat);
  }
  return at::sigmoid(rkv[0]) * at::cat(means, 1);
}

// A chunk of wkv7 as products of matrices. With P_t the product of the decays up to token t and S
// the state before the chunk, c_t^T S_{t-1} = u_t is the solution of a triangular system, and
//
//   S_t = P_t (S + sum_{s <= t} (k_s / P_s) v_s^T - (b_s / P_s) u_s^T),  b = c a
at::Tensor Wkv7Form(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                    const TrainFormOptions& options) {
  const int64_t batch = packed.size(0);
  const int64_t tokens = packed.size(1);
  const int64_t heads = config.heads;
  const std::vector<at::Tensor> parts = packed.chunk(6, 2);  // r, w, k, v, a, g
  const int64_t width = parts[0].size(2) / heads;
  const auto& type = packed.options();
  // [B, T, hid] or [hid] -> [B, heads, T, width] or [heads, 1, width]
  const auto by_head = [&](const at::Tensor& x) {
    if (x.dim() == 1) return x.view({heads, 1, width});
    return x.view({batch, tokens, heads, width}).transpose(1, 2);
  };
  const auto table = [&](const char* name) { return by_head(tables.at(name)); };
  const at::Tensor r = by_head(parts[0]);
  const at::Tensor v = by_head(parts[3]);
  const at::Tensor a = at::sigmoid(by_head(parts[4]));
  const at::Tensor log_decay = -std::exp(-0.5) * at::sigmoid(by_head(parts[1]));
  const at::Tensor scaled = by_head(parts[2]) * table("key_scale");
  const at::Tensor c = scaled / scaled.square().sum(3, true).sqrt().clamp_min(1e-12);
  const at::Tensor k = by_head(parts[2]) * (1 + (a - 1) * table("key_rate"));
  const at::Tensor b = c * a;

  at::Tensor state = at::zeros({batch, heads, width, width}, type);
  if (config.initial_state) state = state + tables.at("initial_state");
  if (options.carry != nullptr) state = options.carry->sums.to(packed.scalar_type());
  std::vector<at::Tensor> sums;
  for (int64_t first = 0; first < tokens; first += kChunk) {
    const int64_t length = std::min(kChunk, tokens - first);
    const auto chunk = [&](const at::Tensor& x) { return x.slice(2, first, first + length); };
    const at::Tensor before = chunk(log_decay).cumsum(2) - chunk(log_decay);
    const at::Tensor with_own = before + chunk(log_decay);
    const at::Tensor unscale = (-with_own).exp();
    const at::Tensor keys = (chunk(k) * unscale).transpose(2, 3);
    const at::Tensor removals = (chunk(b) * unscale).transpose(2, 3);
    const at::Tensor units = chunk(c) * before.exp();
    const at::Tensor reads = chunk(r) * with_own.exp();
    const at::Tensor system = at::eye(length, type) + at::matmul(units, removals).tril(-1);
    const at::Tensor u = at::linalg_solve_triangular(
        system, at::matmul(units, state) + at::matmul(at::matmul(units, keys).tril(-1), chunk(v)),
        /*upper=*/false);
    sums.push_back(at::matmul(reads, state) + at::matmul(at::matmul(reads, keys).tril(), chunk(v)) -
                   at::matmul(at::matmul(reads, removals).tril(), u));
    const at::Tensor scale = with_own.select(2, length - 1).exp().unsqueeze(3);
    state = scale * (state + at::matmul(keys, chunk(v)) - at::matmul(removals, u));
  }
  if (options.carry != nullptr) options.carry->sums = state.detach().to(at::kFloat);

  const at::Tensor y = at::cat(sums, 2);
  const at::Tensor centred = y - y.mean(3, true);
  const at::Tensor normal =
      centred / (centred.square().mean(3, true) + 1e-5 * static_cast<double>(width)).sqrt();
  const at::Tensor bonus = (r * k * table("bonus")).sum(3, true) * v;
  const at::Tensor mixed = normal * table("group_norm.weight") + table("group_norm.bias") + bonus;
  return mixed.transpose(1, 2).reshape({batch, tokens, heads * width}) * parts[5];
}

}  // namespace aft
