#include <algorithm>
#include <cmath>

#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"
#include "model/kernels/wkv/channels-inl.h"
#include "model/kernels/wkv/wkv.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// A token's step needs these of a head. Each array has a number for each of the N channels.
struct Wkv7Token {
  float* decay;    // w
  float* key;      // k
  float* unit;     // c
  float* removal;  // c * a
  float* y;
  float bonus = 0;  // sum_j r[j] k[j] bonus[j]
};

// Reads decay, rate and keys of one token (`in` points to its r of this head).
HWY_INLINE void PrepareToken(const Wkv7Params& params, int64_t head, const float* in,
                             Wkv7Token* token) {
  const int64_t hid = params.hid;
  const int64_t width = params.head_width();
  const int64_t first = head * width;
  ForVectors(width, [&](auto d, int64_t i) HWY_ATTR {
    const auto one = hn::Set(d, 1.0F);
    hn::Vec<decltype(d)> gates[2] = {hn::LoadU(d, in + hid + i), hn::LoadU(d, in + 4 * hid + i)};
    OnePlusExpNegEach<2>(d, gates);
    const auto k = hn::LoadU(d, in + 2 * hid + i);
    const auto a = hn::Div(one, gates[1]);
    // exp(-1/2) = 0.60653...: the smallest decay is exp(-0.6065) = 0.545.
    const auto decay = Exp(d, hn::Div(hn::Set(d, -0.606530660F), gates[0]));
    const auto rate = hn::LoadU(d, params.key_rate + first + i);
    hn::StoreU(decay, d, token->decay + i);
    hn::StoreU(hn::Mul(k, hn::MulAdd(hn::Sub(a, one), rate, one)), d, token->key + i);
    hn::StoreU(hn::Mul(k, hn::LoadU(d, params.key_scale + first + i)), d, token->unit + i);
    hn::StoreU(a, d, token->removal + i);
  });
  token->bonus = SumVectors(width, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    const auto product = hn::Mul(hn::LoadU(d, in + i), hn::LoadU(d, token->key + i));
    return hn::MulAdd(product, hn::LoadU(d, params.bonus + first + i), sum);
  });
  const float square = SumVectors(width, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    const auto c = hn::LoadU(d, token->unit + i);
    return hn::MulAdd(c, c, sum);
  });
  const float scale = 1.0F / std::max(std::sqrt(square), 1e-12F);
  ForVectors(width, [&](auto d, int64_t i) HWY_ATTR {
    const auto c = hn::Mul(hn::LoadU(d, token->unit + i), hn::Set(d, scale));
    hn::StoreU(c, d, token->unit + i);
    hn::StoreU(hn::Mul(c, hn::LoadU(d, token->removal + i)), d, token->removal + i);
  });
}

// Advances kVectors vectors of columns of S from column i on, and computes those columns of the
// token's sums.
template <int kVectors, class D>
HWY_INLINE void StepColumns(D d, int64_t width, const float* r, const float* v, int64_t i,
                            const Wkv7Token& token, float* state) {
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V dots[kVectors];
  V values[kVectors];
  V y[kVectors];
  for (int n = 0; n < kVectors; ++n) dots[n] = y[n] = hn::Zero(d);
  for (int n = 0; n < kVectors; ++n) values[n] = hn::LoadU(d, v + i + n * lanes);
  for (int64_t j = 0; j < width; ++j) {
    const V c = hn::Set(d, token.unit[j]);
    const float* const row = state + j * width + i;
    for (int n = 0; n < kVectors; ++n) {
      dots[n] = hn::MulAdd(c, hn::LoadU(d, row + n * lanes), dots[n]);
    }
  }
  for (int64_t j = 0; j < width; ++j) {
    const V decay = hn::Set(d, token.decay[j]);
    const V key = hn::Set(d, token.key[j]);
    const V removal = hn::Set(d, token.removal[j]);
    const V read = hn::Set(d, r[j]);
    float* const row = state + j * width + i;
    for (int n = 0; n < kVectors; ++n) {
      const V added = hn::NegMulAdd(dots[n], removal, hn::Mul(key, values[n]));
      const V s = hn::MulAdd(decay, hn::LoadU(d, row + n * lanes), added);
      hn::StoreU(s, d, row + n * lanes);
      y[n] = hn::MulAdd(s, read, y[n]);
    }
  }
  for (int n = 0; n < kVectors; ++n) hn::StoreU(y[n], d, token.y + i + n * lanes);
}

HWY_INLINE void StepState(int64_t width, const float* r, const float* v, const Wkv7Token& token,
                          float* state) {
  const hn::ScalableTag<float> d;
  constexpr int kAtOnce = 4;
  const int64_t block = kAtOnce * static_cast<int64_t>(hn::Lanes(d));
  const int64_t blocks = width / block * block;
  for (int64_t i = 0; i < blocks; i += block) {
    StepColumns<kAtOnce>(d, width, r, v, i, token, state);
  }
  ForVectors(width - blocks, [&](auto any, int64_t i) HWY_ATTR {
    StepColumns<1>(any, width, r, v, blocks + i, token, state);
  });
}

// Normalises the head's sums, and adds the bonus of the token itself and the gate.
HWY_INLINE void FinishToken(const Wkv7Params& params, int64_t head, const float* v, const float* g,
                            const Wkv7Token& token, float* y) {
  const int64_t width = params.head_width();
  const int64_t first = head * width;
  const auto count = static_cast<float>(width);
  const float sum = SumVectors(width, [&](auto d, int64_t i, auto sums) HWY_ATTR {
    return hn::Add(sums, hn::LoadU(d, token.y + i));
  });
  const float mean = sum / count;
  const float squares = SumVectors(width, [&](auto d, int64_t i, auto sums) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, token.y + i), hn::Set(d, mean));
    return hn::MulAdd(centred, centred, sums);
  });
  const float scale = 1.0F / std::sqrt(squares / count + count * 1e-5F);
  ForVectors(width, [&](auto d, int64_t i) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, token.y + i), hn::Set(d, mean));
    const auto scaled = hn::MulAdd(hn::Mul(centred, hn::Set(d, scale)),
                                   hn::LoadU(d, params.norm_weight + first + i),
                                   hn::LoadU(d, params.norm_bias + first + i));
    const auto with_bonus = hn::MulAdd(hn::Set(d, token.bonus), hn::LoadU(d, v + i), scaled);
    hn::StoreU(hn::Mul(with_bonus, hn::LoadU(d, g + i)), d, y + i);
  });
}

void Wkv7Heads(const Wkv7Params& params, const RaggedBatch& batch, const float* in,
               int64_t in_stride, StateView state, float* y, int64_t y_stride, float* scratch,
               int64_t begin, int64_t end) {
  const int64_t hid = params.hid;
  const int64_t width = params.head_width();
  const int64_t padded = (width + 15) / 16 * 16;
  Wkv7Token token = {scratch, scratch + padded, scratch + 2 * padded, scratch + 3 * padded,
                     scratch + 4 * padded};
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / params.heads;
    const int64_t head = unit % params.heads;
    const int32_t slot = batch.slot[row];
    float* const s = state.base + slot * state.slot_stride + head * width * width;
    const bool is_new = slot >= 0 && batch.position[row] == 0;
    if (is_new && params.initial == nullptr) std::fill_n(s, width * width, 0.0F);
    if (is_new && params.initial != nullptr) {
      std::copy_n(params.initial + head * width * width, width * width, s);
    }
    for (int64_t t = batch.offset[row]; t < batch.offset[row + 1]; ++t) {
      float* const out = y + t * y_stride + head * width;
      if (slot < 0) {
        std::fill_n(out, width, 0.0F);
        continue;
      }
      const float* const r = in + t * in_stride + head * width;
      PrepareToken(params, head, r, &token);
      StepState(width, r, r + 3 * hid, token, s);
      FinishToken(params, head, r + 3 * hid, r + 5 * hid, token, out);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(Wkv7Heads);

void Wkv7Forward(const Wkv7Params& params, const RaggedBatch& batch, const float* in,
                 int64_t in_stride, StateView state, float* y, int64_t y_stride, float* scratch,
                 int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(Wkv7Heads)
  (params, batch, in, in_stride, state, y, y_stride, scratch, begin, end);
}

}  // namespace aft::kernels
#endif
