// Exponential for the kernels, compiled once per instruction set.
#pragma once

#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// x, but at least low (at most high). A NaN stays NaN: if either operand is NaN, x86's max and min
// return the second operand. Those of NEON and the portable ones return the operand that is not
// NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtLeast(D d, float low, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, low)), hn::Set(d, low), x);
#else
  return hn::Max(hn::Set(d, low), x);
#endif
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtMost(D d, float high, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, high)), hn::Set(d, high), x);
#else
  return hn::Min(hn::Set(d, high), x);
#endif
}

// x[i] = exp(x[i]) for x[i] <= 88, to 1.5 ulp. Below -87.3 the result stays at 2^-126, which is
// negligible next to terms near 1.
//
// A NaN stays NaN if the low 9 bits of its mantissa are 0, as in every NaN that arithmetic makes or
// that is widened from bf16 or fp16. Other NaNs would need a further operation in every
// exponential. So the server replaces those that clients send (ReadFloats in
// server/api/oip/tensors.h).
//
// Every lane gets the same operations in the same order, whatever the vector's width and kCount
// are. All vectors go through each step together: one exponential is a chain of 15 dependent
// operations, and one chain after the other would fill the CPU's schedulers with operations that
// wait. The polynomial is minimax, of degree 5 on +-ln(2)/2, with a relative error of 9e-8.
template <int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void ExpEach(D d, V* x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
  const V magic = hn::Set(d, 12582912.0F);
  V shifted[kCount];
  V r[kCount];
  V p[kCount];
  for (int i = 0; i < kCount; ++i) x[i] = AtLeast(d, -87.33F, x[i]);
  for (int i = 0; i < kCount; ++i) shifted[i] = hn::MulAdd(x[i], hn::Set(d, 1.44269504F), magic);
  for (int i = 0; i < kCount; ++i) {
    const V n = hn::Sub(shifted[i], magic);
#if HWY_NATIVE_FMA
    // The constant's error times n stays below 3e-7 for the smallest results, and below 1e-8 for
    // results large enough to matter.
    r[i] = hn::NegMulAdd(n, hn::Set(d, 0.693147182F), x[i]);
#else
    // Without FMA n * ln(2) would be rounded: ln(2) is split so that the first product is exact.
    r[i] = hn::Sub(hn::Sub(x[i], hn::Mul(n, hn::Set(d, 0.693359375F))),
                   hn::Mul(n, hn::Set(d, -2.12194440e-4F)));
#endif
  }
  for (int i = 0; i < kCount; ++i) {
    p[i] = hn::MulAdd(hn::Set(d, 0.008290272206F), r[i], hn::Set(d, 0.041898161173F));
  }
  for (int i = 0; i < kCount; ++i) p[i] = hn::MulAdd(p[i], r[i], hn::Set(d, 0.166676387191F));
  for (int i = 0; i < kCount; ++i) p[i] = hn::MulAdd(p[i], r[i], hn::Set(d, 0.499991476536F));
  for (int i = 0; i < kCount; ++i) p[i] = hn::MulAdd(p[i], r[i], hn::Set(d, 0.999999701977F));
  for (int i = 0; i < kCount; ++i) p[i] = hn::MulAdd(p[i], r[i], hn::Set(d, 1.0F));
  for (int i = 0; i < kCount; ++i) {
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted[i]));
    x[i] = hn::BitCast(d, hn::Add(hn::BitCast(di, p[i]), exponent));
  }
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  ExpEach<1>(d, &x);
  return x;
}

// q[i] = 1 + exp(-q[i]): the divisor of a sigmoid gate. It is finite for every finite q, and about
// 1e38 from q = -88 downwards.
template <int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void OnePlusExpNegEach(D d, V* q) {
  for (int i = 0; i < kCount; ++i) q[i] = AtMost(d, 88.0F, hn::Neg(q[i]));
  ExpEach<kCount>(d, q);
  for (int i = 0; i < kCount; ++i) q[i] = hn::Add(hn::Set(d, 1.0F), q[i]);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V OnePlusExpNeg(D d, V q) {
  OnePlusExpNegEach<1>(d, &q);
  return q;
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
