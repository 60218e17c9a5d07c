#include "model/kernels/wkv/blend.h"

#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"
#include "model/kernels/wkv/channels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

template <class D, class V = hn::Vec<D>>
HWY_INLINE V SigmoidOf(D d, V x) {
  return hn::Div(hn::Set(d, 1.0F), OnePlusExpNeg(d, x));
}

void BlendRows(const float* a, const float* b, const float* share, int64_t count, float* y) {
  ForVectors(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto from = hn::LoadU(d, a + i);
    const auto change = hn::Sub(hn::LoadU(d, b + i), from);
    hn::StoreU(hn::MulAdd(change, hn::LoadU(d, share + i), from), d, y + i);
  });
}

void BlendGatedRows(const float* a, const float* b, const float* gate, int64_t count, float* y) {
  ForVectors(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto from = hn::LoadU(d, a + i);
    const auto change = hn::Sub(hn::LoadU(d, b + i), from);
    hn::StoreU(hn::MulAdd(change, SigmoidOf(d, hn::LoadU(d, gate + i)), from), d, y + i);
  });
}

void AddGatedRows(const float* x, const float* gate, int64_t count, float* y) {
  ForVectors(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto open = SigmoidOf(d, hn::LoadU(d, gate + i));
    hn::StoreU(hn::MulAdd(open, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  });
}

void TanhRows(const float* x, int64_t count, float* y) {
  ForVectors(count, [&](auto d, int64_t i) HWY_ATTR {
    // (1 - e) / (1 + e) with e = exp(-2 |x|) cannot overflow.
    const auto one = hn::Set(d, 1.0F);
    const auto value = hn::LoadU(d, x + i);
    const auto e = Exp(d, hn::Mul(hn::Set(d, -2.0F), hn::Abs(value)));
    const auto size = hn::Div(hn::Sub(one, e), hn::Add(one, e));
    hn::StoreU(hn::CopySign(size, value), d, y + i);
  });
}

void SigmoidRows(const float* x, int64_t count, float* y) {
  ForVectors(count, [&](auto d, int64_t i)
                        HWY_ATTR { hn::StoreU(SigmoidOf(d, hn::LoadU(d, x + i)), d, y + i); });
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(BlendRows);
AFT_EXPORT(BlendGatedRows);
AFT_EXPORT(AddGatedRows);
AFT_EXPORT(TanhRows);
AFT_EXPORT(SigmoidRows);

void Blend(const float* a, const float* b, const float* share, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(BlendRows)(a, b, share, count, y);
}

void BlendGated(const float* a, const float* b, const float* gate, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(BlendGatedRows)(a, b, gate, count, y);
}

void AddGated(const float* x, const float* gate, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddGatedRows)(x, gate, count, y);
}

void Tanh(const float* x, int64_t count, float* y) { HWY_DYNAMIC_DISPATCH(TanhRows)(x, count, y); }

void Sigmoid(const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(SigmoidRows)(x, count, y);
}

}  // namespace aft::kernels
#endif
