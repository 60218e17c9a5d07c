// bf16 in memory, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The nearest bf16, ties to even. NaN is handled apart, because a carry could make it infinite.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundToBf16(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto sum = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  const V rounded = hn::BitCast(d, hn::And(sum, hn::Set(du, 0xFFFF0000U)));
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, hn::Set(du, 0x7FC00000U)), rounded);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadBf16(D d, const uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
}

// x must have been rounded by RoundToBf16.
template <class D>
HWY_INLINE void StoreBf16([[maybe_unused]] D d, hn::Vec<D> x, uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto half = hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, x)));
  hn::StoreU(hn::DemoteTo(d16, half), d16, p);
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
