// Loops over channels for the kernels of RWKV, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Calls fn(d, i) for each whole vector of numbers [i, i + lanes) below `count`, then for each of
// the rest with a vector of one number.
template <class Fn>
HWY_INLINE void ForVectors(int64_t count, const Fn& fn) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) fn(d, i);
  for (; i < count; ++i) fn(one, i);
}

// The sum of the numbers of fn(d, i, sum) over the same vectors, where fn returns `sum` and its
// vector's numbers.
template <class Fn>
HWY_INLINE float SumVectors(int64_t count, const Fn& fn) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sums = hn::Zero(d);
  auto rest = hn::Zero(one);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) sums = fn(d, i, sums);
  for (; i < count; ++i) rest = fn(one, i, rest);
  return hn::GetLane(hn::SumOfLanes(d, sums)) + hn::GetLane(rest);
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
