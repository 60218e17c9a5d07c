#include "model/mixers/aft_parallel.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/cummax.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/full.h"
#include "ATen/ops/maximum.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"

namespace aft {
namespace {

// The matrix product sees weights relative to the largest key of a block pair, later tokens
// included. Weights below exp(-60) are raised to it, which keeps everything finite in fp32 and
// bf16; it is nothing beside a row's own largest weight as long as that is above exp(-30).
constexpr double kLowestExponent = -60;
constexpr double kMaxRise = 30;

// w over C + L key columns for L query rows: -inf in the future, 0 outside the window.
// band_rows [R, L, s] (R blocks, or 1 for all of them) -> [R, L, C + L].
at::Tensor BiasMatrix(const at::Tensor& band_rows, int64_t window, int64_t context, int64_t length,
                      const at::TensorOptions& options) {
  const at::Tensor row = at::arange(length).unsqueeze(1);
  const at::Tensor column = at::arange(context + length).unsqueeze(0);
  const at::Tensor offset = row + context - column;  // t - t'
  at::Tensor bias = at::zeros({1, length, context + length}, options);
  if (window > 0) {
    const at::Tensor index = offset.clamp(0, window - 1)
                                 .unsqueeze(0)
                                 .expand({band_rows.size(0), length, context + length});
    bias = at::where(offset.lt(window), band_rows.gather(2, index), bias);
  }
  return bias.masked_fill(offset.lt(0), -std::numeric_limits<double>::infinity());
}

// num / den for some channels, row by row: the difference to the row's own maximum comes first. k
// and v [B, R, C + L, n], bias [R or 1, L, C + L]; the carry's sums [B, n], or undefined -> [B, R,
// L, n].
at::Tensor ExactRatio(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                      const AftCarry& sums) {
  const int64_t length = bias.size(1);
  const int64_t columns = bias.size(2);
  at::Tensor max = std::get<0>(at::cummax(k.detach(), 2)).slice(2, columns - length, columns);
  const auto spread = [&](const at::Tensor& x) {
    return x.to(k.scalar_type()).unsqueeze(1).unsqueeze(1);  // [B, 1, 1, n]
  };
  if (sums.max.defined()) max = at::maximum(max, spread(sums.max));
  const at::Tensor weight =
      at::exp((k.unsqueeze(2) - max.unsqueeze(3)) + bias.unsqueeze(0).unsqueeze(4));
  at::Tensor num = (weight * v.unsqueeze(2)).sum(3);
  at::Tensor den = weight.sum(3);
  if (sums.max.defined()) {
    const at::Tensor scale = at::exp(spread(sums.max) - max);
    num = num + scale * spread(sums.num);
    den = den + scale * spread(sums.den);
  }
  return num / den;
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
  const bool prefix = carry != nullptr && !blocks;  // the carry has sums of older tokens
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
  if (prefix) {
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
  const at::Tensor bias = BiasMatrix(band_rows, window, context, length, packed.options());
  const at::Tensor sums =
      at::exp(bias).to(gemm).unsqueeze(0).matmul(operand).to(packed.scalar_type());
  at::Tensor num = sums.slice(3, 0, hid);
  at::Tensor den = sums.slice(3, hid, 2 * hid);

  if (prefix) {
    const at::Tensor scale = at::exp(carry->max.view({batch, 1, 1, hid}) - anchor);
    num = num + scale * carry->num.view({batch, 1, 1, hid});
    den = den + scale * carry->den.view({batch, 1, 1, hid});
  }
  at::Tensor ratio = num / den;

  // Channels whose maximum rises too far after some block's first row (a key that outweighs all
  // before it) are done again without the shared anchor.
  at::Tensor first_max = block_k.detach().slice(2, 0, context + 1).amax(2, /*keepdim=*/true);
  if (prefix) {
    first_max = at::maximum(first_max, carry->max.to(k.scalar_type()).view({batch, 1, 1, hid}));
  }
  const at::Tensor rising =
      (anchor - first_max).amax(at::IntArrayRef({0, 1, 2})).gt(kMaxRise).nonzero().squeeze(1);
  if (rising.size(0) > 0) {
    AftCarry sums_of_rising;
    if (prefix) {
      sums_of_rising.num = carry->num.index_select(1, rising);
      sums_of_rising.den = carry->den.index_select(1, rising);
      sums_of_rising.max = carry->max.index_select(1, rising);
    }
    ratio = ratio.index_copy(3, rising,
                             ExactRatio(block_k.index_select(3, rising),
                                        block_v.index_select(3, rising), bias, sums_of_rising));
  }

  if (carry != nullptr) {
    const at::NoGradGuard no_grad;
    const int64_t total = k.size(1);
    if (prefix) Absorb(k.slice(1, 0, total - context), v.slice(1, 0, total - context), *carry);
    carry->k = k.detach().slice(1, total - context, total).clone();
    carry->v = v.detach().slice(1, total - context, total).clone();
  }
  const at::Tensor y = ratio.reshape({batch, count * length, hid}).slice(1, 0, tokens);
  return at::sigmoid(q) * y;
}

}  // namespace aft
