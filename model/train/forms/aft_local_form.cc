#include <algorithm>
#include <tuple>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/full.h"
#include "ATen/ops/logsumexp.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/zeros.h"
#include "base/check.h"
#include "model/kernels/ragged_batch.h"
#include "model/train/forms/aft_sums.h"
#include "model/train/forms/forms.h"

namespace aft {
namespace {

constexpr int64_t kMinTile = 64;

// The keys and values that the rows of a segment see, in time order; those before it come first.
struct Context {
  at::Tensor k, v;  // [B, C + T, hid]
  at::Tensor live;  // [B, C + T, 1] bool: neither empty nor masked; undefined without a mask
};

at::Tensor PadFront(const at::Tensor& x, int64_t count, double value) {
  return at::constant_pad_nd(x, {0, 0, count, 0}, value);
}
at::Tensor PadBack(const at::Tensor& x, int64_t count, double value) {
  return at::constant_pad_nd(x, {0, 0, 0, count}, value);
}

Context Prepend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask, int64_t context,
                const MixerCarry* carry) {
  Context result;
  std::tie(result.k, result.v) = Masked(k, v, mask);
  if (mask.defined()) {
    result.live = PadFront(mask.gt(kMaskedBelow).unsqueeze(2), context, 0);
  }
  if (carry != nullptr) {
    AFT_CHECK(carry->k.size(1) == context && !mask.defined());
    result.k = at::cat({carry->k.to(k.scalar_type()), result.k}, 1);
    result.v = at::cat({carry->v.to(v.scalar_type()), result.v}, 1);
  } else {
    result.k = PadFront(result.k, context, kEmptyKey);
    result.v = PadFront(result.v, context, 0);
  }
  return result;
}

// The rows [R or 1, L, s] of a band for R tiles of L tokens; undefined without a band.
at::Tensor TileBand(const at::Tensor& band, int64_t tokens, int64_t length, int64_t tiles) {
  if (!band.defined()) return {};
  if (band.size(0) == 1) return band.unsqueeze(1).expand({1, length, -1});
  return PadBack(band, tiles * length - tokens, 0).view({tiles, length, -1});
}

// The means for prefix_block: in blocks of H tokens, of which each sees itself and the one before.
at::Tensor BlockMean(const Context& x, const at::Tensor& band, int64_t length,
                     at::ScalarType gemm) {
  const int64_t tokens = x.k.size(1) - length;
  const int64_t blocks = (tokens + length - 1) / length;
  const int64_t padding = blocks * length - tokens;
  // [B, blocks, 2 H, hid]. unfold overlaps without a copy.
  const auto tile = [&](const at::Tensor& t, double empty) {
    return PadBack(t, padding, empty).unfold(1, 2 * length, length).transpose(2, 3);
  };
  const at::Tensor bias =
      CausalBandBias(TileBand(band, tokens, length, blocks), length, length, x.k.options());
  return TileMean(tile(x.k, kEmptyKey), tile(x.v, 0), bias, /*floor=*/0,
                  x.live.defined() ? tile(x.live, 0) : at::Tensor(), gemm)
      .flatten(1, 2)
      .slice(1, 0, tokens);
}

// The means over all earlier tokens: rows in tiles with their window, plus the sum of all older
// tokens.
at::Tensor PrefixMean(const Context& x, const at::Tensor& band, int64_t context,
                      at::ScalarType gemm) {
  const int64_t tokens = x.k.size(1) - context;
  const at::Tensor anchor = x.k.detach().amax(1, /*keepdim=*/true);
  const at::Tensor operand = WeightedValues(x.k, x.v, anchor).unsqueeze(2);
  const auto bias = [&](int64_t length, int64_t tiles) {
    return CausalBandBias(TileBand(band, tokens, length, tiles), context - 1, length,
                          x.k.options());
  };
  const int64_t length = std::min(tokens, std::max(kMinTile, context));
  const at::Tensor sums =
      PrefixSums(operand, bias(length, (tokens + length - 1) / length).unsqueeze(1), context, gemm);
  at::Tensor seen;
  if (x.live.defined()) {
    const int64_t columns = x.live.size(1);
    seen = std::get<0>(x.live.to(at::kFloat).cummax(1))
               .slice(1, columns - tokens, columns)
               .gt(0)
               .unsqueeze(1);
  }
  const Quotient quotient = Divide(sums.squeeze(2).unsqueeze(1), x.k.size(2), seen);
  return Redo(quotient, x.k.unsqueeze(1), x.v.unsqueeze(1),
              [&]() {
                return at::cat({at::zeros({1, tokens, 1}, x.k.options()), bias(tokens, 1)}, 2);
              })
      .squeeze(1);
}

// The state after a segment: see MixerCarry.
void Store(const Context& x, int64_t context, bool blocks, MixerCarry* carry) {
  const at::NoGradGuard no_grad;
  const int64_t total = x.k.size(1);
  const at::Tensor k = x.k.detach();
  const at::Tensor v = x.v.detach();
  if (blocks) {
    carry->k = k.slice(1, total - context, total).clone();
    carry->v = v.slice(1, total - context, total).clone();
    return;
  }
  const int64_t newest = total - (context - 1);
  const at::Tensor old_k = k.slice(1, 0, newest);
  const at::Tensor mean = (at::softmax(old_k, 1) * v.slice(1, 0, newest)).sum(1, /*keepdim=*/true);
  carry->k = at::cat({at::logsumexp(old_k, 1, /*keepdim=*/true), k.slice(1, newest, total)}, 1);
  carry->v = at::cat({mean, v.slice(1, newest, total)}, 1);
}

int64_t ContextLength(int64_t window, int64_t prefix_block) {
  return prefix_block > 0 ? prefix_block : 1 + std::max<int64_t>(window - 1, 0);
}

}  // namespace

MixerCarry EmptyAftCarry(const MixerConfig& config, int64_t batch, int64_t hid) {
  const int64_t context = ContextLength(config.window, config.prefix_block);
  return {at::full({batch, context, hid}, kEmptyKey), at::zeros({batch, context, hid}), {}};
}

at::Tensor AftLocalForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options) {
  const auto qkv = packed.chunk(3, 2);
  const int64_t tokens = packed.size(1);
  const int64_t block = config.prefix_block;
  const at::ScalarType gemm = options.GemmType(packed);
  AFT_CHECK(options.carry == nullptr || block == 0 || tokens % block == 0);

  const at::Tensor band = BandFor(config, tables, tokens);
  const int64_t context = ContextLength(band.defined() ? band.size(1) : 0, block);
  const Context x = Prepend(qkv[1], qkv[2], options.mask, context, options.carry);
  const at::Tensor mean =
      block > 0 ? BlockMean(x, band, block, gemm) : PrefixMean(x, band, context, gemm);
  if (options.carry != nullptr) Store(x, context, block > 0, options.carry);
  return at::sigmoid(qkv[0]) * mean;
}

}  // namespace aft
