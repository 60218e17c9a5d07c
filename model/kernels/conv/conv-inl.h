// Common code of the AFT-conv kernels, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "model/kernels/exp-inl.h"
#include "model/kernels/linear/bf16-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// Spreads a row of one number per head over the channels of kVectors vectors, which begin at
// `channel`. A head has `head_width` channels. Whole vectors of the row are read.
template <int kVectors, class D>
class ConvSpread {
 public:
  ConvSpread(D d, int64_t channel, int64_t head_width) : d_(d) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t head = channel / head_width;
    int64_t next = (head + 1) * head_width;  // first channel of the next head
    HWY_ALIGN int32_t index[hn::MaxLanes(D())];
    for (int i = 0; i < kVectors; ++i) {
      first_[i] = channel == next ? head + 1 : head;
      for (int64_t lane = 0; lane < lanes; ++lane, ++channel) {
        if (channel == next) {
          ++head;
          next += head_width;
        }
        index[lane] = static_cast<int32_t>(head - first_[i]);
      }
      index_[i] = hn::SetTableIndices(d, index);
    }
  }

  HWY_INLINE hn::Vec<D> operator()(const float* row, int i) const {
    return hn::TableLookupLanes(hn::LoadU(d_, row + first_[i]), index_[i]);
  }

 private:
  using Indices = decltype(hn::SetTableIndices(D(), static_cast<const int32_t*>(nullptr)));

  const D d_;
  int64_t first_[kVectors];
  Indices index_[kVectors];
};

// ConvSpread for the case that all these channels belong to one head.
template <int kVectors, class D>
class ConvSpreadOne {
 public:
  ConvSpreadOne(D d, int64_t channel, int64_t head_width) : d_(d), head_(channel / head_width) {}

  HWY_INLINE hn::Vec<D> operator()(const float* row, int /*i*/) const {
    return hn::Set(d_, row[head_]);
  }

 private:
  const D d_;
  const int64_t head_;
};

// Rings are fp32 or bf16. Numbers that are stored in a bf16 ring must have been rounded already.
template <class D>
HWY_INLINE hn::Vec<D> LoadRing(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadRing(D d, const uint16_t* p) {
  return LoadBf16(d, p);
}
template <class D>
HWY_INLINE void StoreRing(D d, hn::Vec<D> x, float* p) {
  hn::StoreU(x, d, p);
}
template <class D>
HWY_INLINE void StoreRing(D d, hn::Vec<D> x, uint16_t* p) {
  StoreBf16(d, x, p);
}

// Calls fn(tag, i) for vectors that cover [0, n) exactly.
template <class Fn>
HWY_INLINE void ConvCover(int64_t n, const Fn& fn) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fn(d, i);
  for (; i + 4 <= n; i += 4) fn(hn::CappedTag<float, 4>(), i);
  for (; i < n; ++i) fn(hn::CappedTag<float, 1>(), i);
}

template <class From, class To>
HWY_INLINE void ConvCopy(const From* from, To* to, int64_t n) {
  ConvCover(n, [&](auto d, int64_t i) HWY_ATTR { StoreRing(d, LoadRing(d, from + i), to + i); });
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
