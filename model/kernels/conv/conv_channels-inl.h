// Second part of the causal AFT-conv kernel (conv.cc), compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/kernels/conv/conv-inl.h"
#include "model/kernels/conv/conv_row.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// The part of a unit that is computed per channel: kVectors vectors from `channel` on. Spreader
// spreads the numbers of their heads over the channels. The ring is the state's or a copy.
template <int kVectors, class Spreader, class D, class Ring>
class ConvChannels {
 public:
  using V = hn::Vec<D>;

  ConvChannels(D d, const ConvParams& params, const ConvScratch& layout, const ConvRow& row,
               int64_t channel, Ring* ring, int64_t ring_stride, int64_t next)
      : d_(d),
        params_(params),
        layout_(layout),
        row_(row),
        channel_(channel),
        spread_(d, channel, params.head_width()),
        ring_(ring),
        ring_stride_(ring_stride),
        next_(next) {}

  // Runs tokens [begin, end) of the row, whose tables follow one another.
  HWY_INLINE void Run(int64_t begin, int64_t end, const float* table) const {
    float* state = row_.n + channel_;
    V n[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      n[i] = row_.position + begin == 0 ? hn::Zero(d_) : Load(state, i);
    }
    for (int64_t i = begin; i < end; ++i, table += layout_.TableFloats()) Step(i, table, n);
    for (int i = 0; i < kVectors; ++i) hn::StoreU(n[i], d_, state + i * Lanes());
  }

 private:
  static HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(D())); }
  HWY_INLINE V Load(const float* p, int i) const { return hn::LoadU(d_, p + i * Lanes()); }
  HWY_INLINE V RingRow(int64_t r, int i) const {
    return LoadRing(d_, ring_ + r * ring_stride_ + i * Lanes());
  }

  HWY_INLINE void Step(int64_t token, const float* table, V* n) const {
    const int64_t t = row_.position + token;
    const float* in = row_.v + token * row_.packed_stride + channel_;
    V num[kVectors];
    V v[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      v[i] = row_.Masked(token) ? hn::Zero(d_) : Load(in, i);
      if (params_.ring == Number::kBf16) v[i] = RoundToBf16(d_, v[i]);
      num[i] = hn::Mul(spread_(table, i), n[i]);
      num[i] = hn::MulAdd(spread_(table + layout_.stride, i), v[i], num[i]);
    }
    const float* weights = table + 2 * layout_.stride;
    for (int64_t r = 0; r < std::min(t, layout_.rows); ++r, weights += layout_.stride) {
      PrefetchNext(r);
      for (int i = 0; i < kVectors; ++i) {
        num[i] = hn::MulAdd(spread_(weights, i), RingRow(r, i), num[i]);
      }
    }
    const float* q = row_.q + token * row_.packed_stride + channel_;
    float* y = row_.y + token * row_.y_stride + channel_;
    for (int i = 0; i < kVectors; ++i) {
      const V den = hn::Mul(spread_(table + layout_.Den(), i), OnePlusExpNeg(d_, Load(q, i)));
      hn::StoreU(hn::Div(num[i], den), d_, y + i * Lanes());
    }
    const int64_t place = layout_.rows > 0 ? t % layout_.rows : 0;
    for (int i = 0; i < kVectors && t >= layout_.rows; ++i) {
      const V old = layout_.rows > 0 ? RingRow(place, i) : v[i];
      const V kept = hn::Mul(n[i], spread_(table + layout_.Keep(), i));
      n[i] = hn::MulAdd(spread_(table + layout_.Add(), i), old, kept);
    }
    for (int i = 0; i < kVectors && layout_.rows > 0; ++i) {
      StoreRing(d_, v[i], ring_ + place * ring_stride_ + i * Lanes());
    }
  }

  HWY_INLINE void PrefetchNext(int64_t r) const {
    if (next_ == 0) return;
    for (int i = 0; i < kVectors; ++i) {
      FetchLine<kSecondCache>(ring_ + r * ring_stride_ + next_ + i * Lanes());
    }
  }

  const D d_;
  const ConvParams& params_;
  const ConvScratch& layout_;
  const ConvRow& row_;
  const int64_t channel_;
  const Spreader spread_;
  Ring* ring_;  // at `channel`
  const int64_t ring_stride_;
  const int64_t next_;
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
