#include "model/mixers/aft_parallel.h"

#include <algorithm>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/full.h"
#include "ATen/ops/maximum.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"

namespace aft {
namespace {

// exp(-60) and its inverse leave room for products and gradients in fp32 and bf16. It is nothing
// beside the largest weight of 1, for empty places too, and a row with nothing larger stays finite.
constexpr double kLowestExponent = -60;

// exp(w) over C + L key columns for L query rows: 0 in the future, 1 outside the window.
// band_rows [R, L, s] (R blocks, or 1 for all of them) -> [R, L, C + L].
at::Tensor WeightMatrix(const at::Tensor& band_rows, int64_t window, int64_t context,
                        int64_t length, const at::TensorOptions& options) {
  const at::Tensor row = at::arange(length).unsqueeze(1);
  const at::Tensor column = at::arange(context + length).unsqueeze(0);
  const at::Tensor offset = row + context - column;  // t - t'
  const at::Tensor causal = offset.ge(0).to(options.dtype());
  if (window == 0) return causal.unsqueeze(0);
  const at::Tensor index = offset.clamp(0, window - 1)
                               .unsqueeze(0)
                               .expand({band_rows.size(0), length, context + length});
  const at::Tensor weights = at::exp(band_rows.gather(2, index));
  return at::where(offset.lt(window), weights, at::ones({}, options)) * causal;
}

// Adds keys and values [B, N, hid] to the carry's sums of older tokens.
void Absorb(const at::Tensor& k, const at::Tensor& v, AftCarry& carry) {
  if (k.size(1) == 0) return;
  const at::Tensor max = at::maximum(carry.max, k.amax(1));
  const at::Tensor e = at::exp(k - max.unsqueeze(1));
  const at::Tensor scale = at::exp(carry.max - max);
  carry.num = carry.num * scale + (e * v).sum(1);
  carry.den = carry.den * scale + e.sum(1);
  carry.max = max;
}

}  // namespace

AftCarry EmptyAftCarry(int64_t batch, int64_t hid, int64_t window, int64_t prefix_block) {
  const int64_t context = prefix_block > 0 ? prefix_block : std::max<int64_t>(window - 1, 0);
  AftCarry carry;
  carry.k = at::full({batch, context, hid}, kEmptyKey);
  carry.v = at::zeros({batch, context, hid});
  if (prefix_block == 0) {
    carry.num = at::zeros({batch, hid});
    carry.den = at::zeros({batch, hid});
    carry.max = at::full({batch, hid}, kEmptyKey);
  }
  return carry;
}

at::Tensor AftParallel(const at::Tensor& packed, const at::Tensor& band, int64_t window,
                       int64_t prefix_block, AftCarry* carry, at::ScalarType gemm) {
  const int64_t batch = packed.size(0);
  const int64_t tokens = packed.size(1);
  const int64_t hid = packed.size(2) / 3;
  const bool blocks = prefix_block > 0;
  // Without blocks the whole segment is one block, and what came before is the carry alone.
  const int64_t length = blocks ? prefix_block : tokens;
  const int64_t count = (tokens + length - 1) / length;
  const int64_t padding = count * length - tokens;
  AFT_CHECK(carry == nullptr || padding == 0);
  if (gemm == at::ScalarType::Undefined) gemm = packed.scalar_type();

  const at::Tensor q = packed.slice(2, 0, hid);
  at::Tensor k = packed.slice(2, hid, 2 * hid);
  at::Tensor v = packed.slice(2, 2 * hid, 3 * hid);
  if (padding > 0) {
    k = at::constant_pad_nd(k, {0, 0, 0, padding}, kEmptyKey);
    v = at::constant_pad_nd(v, {0, 0, 0, padding}, 0);
  }

  // Prepend what the first block sees of the past.
  int64_t context = 0;
  if (carry != nullptr) {
    context = carry->k.size(1);
    k = at::cat({carry->k.to(k.scalar_type()), k}, 1);
    v = at::cat({carry->v.to(v.scalar_type()), v}, 1);
  } else if (blocks) {
    context = length;
    k = at::constant_pad_nd(k, {0, 0, length, 0}, kEmptyKey);
    v = at::constant_pad_nd(v, {0, 0, length, 0}, 0);
  }

  // [B, count, C + L, hid]: each block beside its context. unfold overlaps without a copy.
  const at::Tensor block_k = k.unfold(1, context + length, length).transpose(2, 3);
  const at::Tensor block_v = v.unfold(1, context + length, length).transpose(2, 3);

  at::Tensor anchor = block_k.detach().amax(2, /*keepdim=*/true);
  if (carry != nullptr && !blocks) {
    anchor = at::maximum(anchor, carry->max.to(k.scalar_type()).view({batch, 1, 1, hid}));
  }
  const at::Tensor e = at::exp(at::clamp_min(block_k - anchor, kLowestExponent));
  const at::Tensor operand = at::cat({e * block_v, e}, 3).to(gemm);

  at::Tensor band_rows;
  if (window > 0) {
    if (band.size(0) == 1) {
      band_rows = band.unsqueeze(1).expand({1, length, window});
    } else {
      AFT_CHECK(carry == nullptr && band.size(0) >= tokens);
      band_rows = at::constant_pad_nd(band.slice(0, 0, tokens), {0, 0, 0, padding}, 0)
                      .view({count, length, window});
    }
  }
  const at::Tensor weights =
      WeightMatrix(band_rows, window, context, length, packed.options()).to(gemm);
  const at::Tensor sums = weights.unsqueeze(0).matmul(operand).to(packed.scalar_type());
  at::Tensor num = sums.slice(3, 0, hid);
  at::Tensor den = sums.slice(3, hid, 2 * hid);

  if (carry != nullptr) {
    if (!blocks) {
      const at::Tensor scale = at::exp(carry->max.view({batch, 1, 1, hid}) - anchor);
      num = num + scale * carry->num.view({batch, 1, 1, hid});
      den = den + scale * carry->den.view({batch, 1, 1, hid});
    }
    const at::NoGradGuard no_grad;
    const int64_t total = k.size(1);
    if (!blocks) Absorb(k.slice(1, 0, total - context), v.slice(1, 0, total - context), *carry);
    carry->k = k.detach().slice(1, total - context, total).clone();
    carry->v = v.detach().slice(1, total - context, total).clone();
  }
  const at::Tensor y = (num / den).reshape({batch, count * length, hid}).slice(1, 0, tokens);
  return at::sigmoid(q) * y;
}

}  // namespace aft
