// First part of the causal AFT-conv kernel (conv.cc), compiled once per instruction set.
#if defined(AFT_MODEL_KERNELS_CONV_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AFT_MODEL_KERNELS_CONV_HEADS_INL_H_
#undef AFT_MODEL_KERNELS_CONV_HEADS_INL_H_
#else
#define AFT_MODEL_KERNELS_CONV_HEADS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "model/kernels/aft.h"
#include "model/kernels/conv-inl.h"
#include "model/kernels/conv_row.h"
#include "model/kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// The part of a unit that is per head. Rows are `heads` floats apart and written as whole vectors,
// whose end reaches into the next row: hence in order.
template <class Ring>
class ConvHeads {
 public:
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

  ConvHeads(const ConvParams& params, const ConvScratch& layout, const float* filter,
            const ConvRow& row, const ConvRings<Ring>& rings, float* scratch)
      : params_(params),
        layout_(layout),
        filter_(filter),
        row_(row),
        heads_(row.heads),
        state_ring_(rings.k),
        ring_(scratch + layout.KRing()),
        max_(scratch + layout.PerHead(0)),
        shift_(scratch + layout.PerHead(1)),
        key_(scratch + layout.PerHead(2)),
        den_(scratch + layout.PerHead(3)),
        m_(scratch + layout.PerHead(4)) {
    if (row.position == 0) {
      std::fill_n(den_, heads_, 0.0F);
      std::fill_n(m_, heads_, kEmptyMax);
    } else {
      CopyRow(row.d, den_, heads_);
      CopyRow(row.m, m_, heads_);
    }
    CopyRow(m_, max_, heads_);
    for (int64_t r = 0; r < std::min(row.position, layout.rows); ++r) {
      const Ring* keys = state_ring_ + r * params.heads;
      for (int64_t i = 0; rings.next_k != 0 && i < heads_; i += kConvPad) {
        hwy::Prefetch(keys + rings.next_k + i);
      }
      CopyRow(keys, ring_ + r * heads_, heads_);
      RaiseMax(ring_ + r * heads_);
    }
  }

  // Writes the table of the row's token i and moves on past it.
  HWY_INLINE void Step(int64_t i, float* table) {
    const int64_t t = row_.position + i;
    LoadKey(i);
    RaiseMax(key_);
    if (params_.wide_bias) {
      FindShift(t);
      Weigh<true>(t, table);
    } else {
      Weigh<false>(t, table);
    }
    Retire(t, table);
  }

  // Writes the state back.
  HWY_INLINE void Finish() {
    CopyRow(den_, row_.d, heads_);
    CopyRow(m_, row_.m, heads_);
    const int64_t end = row_.position + row_.length;
    for (int64_t j = std::max(end - layout_.rows, row_.position); j < end; ++j) {
      const int64_t r = j % layout_.rows;
      CopyRow(ring_ + r * heads_, state_ring_ + r * params_.heads, heads_);
    }
  }

 private:
  template <class Fn>
  HWY_INLINE void EachVector(const Fn& fn) const {
    for (int64_t i = 0; i < heads_; i += static_cast<int64_t>(hn::Lanes(d_))) fn(i);
  }
  HWY_INLINE V Load(const float* p) const { return hn::LoadU(d_, p); }
  HWY_INLINE void Store(V x, float* p) const { hn::StoreU(x, d_, p); }

  HWY_INLINE void LoadKey(int64_t i) {
    CopyRow(row_.k + i * row_.packed_stride, key_, heads_);
    if (row_.Masked(i)) {
      std::fill_n(key_, heads_, kEmptyMax);
    } else if (row_.mask != nullptr) {
      for (int64_t h = 0; h < heads_; ++h) key_[h] += row_.mask[i];
    }
    if (params_.bf16_ring) {
      EachVector([&](int64_t h) HWY_ATTR { Store(RoundToBf16(d_, Load(key_ + h)), key_ + h); });
    }
  }

  HWY_INLINE void RaiseMax(const float* keys) {
    EachVector([&](int64_t i)
                   HWY_ATTR { Store(hn::Max(Load(max_ + i), Load(keys + i)), max_ + i); });
  }

  // fn(row, offset of the row's bias) for the ring's tokens before t. The order depends on t alone.
  template <class Fn>
  HWY_INLINE void EachInRing(int64_t t, const Fn& fn) const {
    if (t == 0 || layout_.rows == 0) return;
    int64_t age = (t - 1) % layout_.rows + 1;
    for (int64_t r = 0; r < std::min(t, layout_.rows); ++r) {
      fn(r, age * params_.heads);
      age = age == 1 ? layout_.rows : age - 1;
    }
  }

  // x = (K - M) + w. The difference comes first: the other order loses 4e-4 at |K| ~ 1e4.
  HWY_INLINE V Exponent(const float* keys, int64_t bias, int64_t i) const {
    return hn::Add(hn::Sub(Load(keys + i), Load(max_ + i)), Load(filter_ + bias + i));
  }
  HWY_INLINE V PrefixExponent(int64_t i) const { return hn::Sub(Load(m_ + i), Load(max_ + i)); }

  // The largest exponent of each head: with wide biases exp(x) could leave float's range.
  HWY_INLINE void FindShift(int64_t t) {
    EachVector([&](int64_t i) HWY_ATTR {
      Store(hn::Max(PrefixExponent(i), Exponent(key_, 0, i)), shift_ + i);
    });
    EachInRing(t, [&](int64_t r, int64_t bias) HWY_ATTR {
      EachVector([&](int64_t i) HWY_ATTR {
        Store(hn::Max(Load(shift_ + i), Exponent(ring_ + r * heads_, bias, i)), shift_ + i);
      });
    });
  }

  template <bool kWide>
  HWY_INLINE void Weigh(int64_t t, float* table) {
    const auto store = [&](V x, int64_t r, int64_t i) HWY_ATTR {
      if constexpr (kWide) x = hn::Sub(x, Load(shift_ + i));
      Store(x, table + r * heads_ + i);
    };
    EachVector([&](int64_t i) HWY_ATTR { store(PrefixExponent(i), 0, i); });
    EachVector([&](int64_t i) HWY_ATTR { store(Exponent(key_, 0, i), 1, i); });
    EachInRing(t, [&](int64_t r, int64_t bias) HWY_ATTR {
      EachVector([&](int64_t i)
                     HWY_ATTR { store(Exponent(ring_ + r * heads_, bias, i), 2 + r, i); });
    });
    const int64_t rows = 2 + std::min(t, layout_.rows);
    ExpAll(table, rows * heads_);
    EachVector([&](int64_t i) HWY_ATTR {
      V den = hn::Mul(Load(table + i), Load(den_ + i));
      for (int64_t r = 1; r < rows; ++r) den = hn::Add(den, Load(table + r * heads_ + i));
      Store(den, table + layout_.Den() + i);
    });
  }

  HWY_INLINE void ExpAll(float* x, int64_t n) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d_));
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      V e[4];
      for (int j = 0; j < 4; ++j) e[j] = Load(x + i + j * lanes);
      ExpEach<4>(d_, e);
      for (int j = 0; j < 4; ++j) Store(e[j], x + i + j * lanes);
    }
    for (; i < n; i += lanes) Store(Exp(d_, Load(x + i)), x + i);
  }

  // Token t - s + 1 enters the prefix, t takes its place in the ring.
  HWY_INLINE void Retire(int64_t t, float* table) {
    float* place = layout_.rows > 0 ? ring_ + t % layout_.rows * heads_ : key_;
    if (t >= layout_.rows) {
      EachVector([&](int64_t i) HWY_ATTR {
        const V k = Load(place + i);
        const V m = Load(m_ + i);
        const V e = Exp(d_, hn::Neg(hn::Abs(hn::Sub(k, m))));
        // One of the two factors exp(m - m') and exp(k - m') is exactly 1.
        const auto rises = hn::Gt(k, m);
        const V one = hn::Set(d_, 1.0F);
        const V keep = hn::IfThenElse(rises, e, one);
        const V add = hn::IfThenElse(rises, one, e);
        Store(keep, table + layout_.Keep() + i);
        Store(add, table + layout_.Add() + i);
        Store(hn::MulAdd(Load(den_ + i), keep, add), den_ + i);
        Store(hn::Max(m, k), m_ + i);
      });
    }
    if (layout_.rows > 0) CopyRow(key_, place, heads_);
  }

  const D d_{};
  const ConvParams& params_;
  const ConvScratch& layout_;
  const float* filter_;
  const ConvRow& row_;
  const int64_t heads_;
  Ring* state_ring_;
  float* ring_;  // fp32, rows `heads_` apart
  float* max_;   // M: of all keys so far
  float* shift_;
  float* key_;
  float* den_;  // D and m of the prefix
  float* m_;
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#endif  // AFT_MODEL_KERNELS_CONV_HEADS_INL_H_
