#include <algorithm>

#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"
#include "model/kernels/wkv/channels-inl.h"
#include "model/kernels/wkv/wkv.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// The sums of one vector of channels. It is a value, so that they stay in registers over a chunk.
template <class D, class V = hn::Vec<D>>
struct Wkv4Sums {
  V num;
  V den;
  V max;
};

// e^m of an empty state. It is finite, because -inf minus -inf is NaN, and far below every key.
constexpr float kWkv4Empty = -1e30F;

// Adds token (k, v), which weighs e^k, to sums that are first scaled by e^shift.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Wkv4Sums<D> Wkv4Add(D d, const Wkv4Sums<D>& sums, V shift, V k, V v) {
  const V old_max = hn::Add(sums.max, shift);
  const V max = hn::Max(old_max, k);
  V e[2] = {hn::Sub(old_max, max), hn::Sub(k, max)};
  ExpEach<2>(d, e);
  return {hn::MulAdd(e[0], sums.num, hn::Mul(e[1], v)), hn::MulAdd(e[0], sums.den, e[1]), max};
}

// Runs one row's tokens through the vector of channels from `channel` on.
template <class D>
HWY_INLINE void Wkv4Channels(D d, const Wkv4Params& params, const float* in, int64_t in_stride,
                             int64_t tokens, bool empty, float* state, float* y, int64_t y_stride,
                             int64_t channel) {
  using V = hn::Vec<D>;
  const int64_t hid = params.hid;
  float* const num = state + channel;
  float* const den = num + hid;
  float* const max = den + hid;
  Wkv4Sums<D> sums = {hn::Zero(d), hn::Zero(d), hn::Set(d, kWkv4Empty)};
  if (!empty) sums = {hn::LoadU(d, num), hn::LoadU(d, den), hn::LoadU(d, max)};
  const V decay = hn::LoadU(d, params.decay + channel);
  const V bonus = hn::LoadU(d, params.bonus + channel);
  for (int64_t t = 0; t < tokens; ++t) {
    const float* const row = in + t * in_stride + channel;
    const V r = hn::LoadU(d, row);
    const V k = hn::LoadU(d, row + hid);
    const V v = hn::LoadU(d, row + 2 * hid);
    const Wkv4Sums<D> seen = Wkv4Add(d, sums, hn::Zero(d), hn::Add(k, bonus), v);
    const V gated = hn::Div(seen.num, hn::Mul(seen.den, OnePlusExpNeg(d, r)));
    hn::StoreU(gated, d, y + t * y_stride + channel);
    sums = Wkv4Add(d, sums, decay, k, v);
  }
  hn::StoreU(sums.num, d, num);
  hn::StoreU(sums.den, d, den);
  hn::StoreU(sums.max, d, max);
}

void Wkv4Rows(const Wkv4Params& params, const RaggedBatch& batch, const float* in,
              int64_t in_stride, StateView state, float* y, int64_t y_stride, int64_t begin,
              int64_t end) {
  const int64_t tiles = Wkv4Units(params, 1);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / tiles;
    const int64_t first = unit % tiles * kWkv4Tile;
    const int64_t past = std::min(first + kWkv4Tile, params.hid);
    const int64_t token = batch.offset[row];
    const int64_t tokens = batch.offset[row + 1] - token;
    if (batch.slot[row] < 0) {
      for (int64_t t = 0; t < tokens; ++t) {
        std::fill_n(y + (token + t) * y_stride + first, past - first, 0.0F);
      }
      continue;
    }
    ForVectors(past - first, [&](auto d, int64_t i) HWY_ATTR {
      Wkv4Channels(d, params, in + token * in_stride, in_stride, tokens, batch.position[row] == 0,
                   state.base + batch.slot[row] * state.slot_stride, y + token * y_stride, y_stride,
                   first + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(Wkv4Rows);

void Wkv4Forward(const Wkv4Params& params, const RaggedBatch& batch, const float* in,
                 int64_t in_stride, StateView state, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  HWY_DYNAMIC_DISPATCH(Wkv4Rows)
  (params, batch, in, in_stride, state, y, y_stride, begin, end);
}

}  // namespace aft::kernels
#endif
