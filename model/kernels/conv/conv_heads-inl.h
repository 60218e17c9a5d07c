// First part of the causal AFT-conv kernel (conv.cc), compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/kernels/aft/aft.h"
#include "model/kernels/conv/conv-inl.h"
#include "model/kernels/conv/conv_row.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// The part of a unit that is computed per head. Rows of numbers per head are layout.stride floats
// apart and consist of whole vectors; the numbers after the last head are never used.
template <class Ring>
class ConvHeads {
 public:
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
        key_(scratch + layout.PerHead(1)),
        den_(scratch + layout.PerHead(2)),
        m_(scratch + layout.PerHead(3)) {
    if (row.position == 0) {
      std::fill_n(den_, layout.stride, 0.0F);
      std::fill_n(m_, layout.stride, kEmptyMax);
    } else {
      CopyRow(row.d, den_);
      CopyRow(row.m, m_);
    }
    const int64_t in_ring = std::min(row.position, layout.rows);
    for (int64_t r = 0; r < in_ring; ++r) {
      const Ring* keys = state_ring_ + r * params.heads;
      for (int64_t i = 0; rings.next_k != 0 && i < heads_; i += kConvPad) {
        FetchLine<kSecondCache>(keys + rings.next_k + i);
      }
      CopyRow(keys, ring_ + r * layout.stride);
    }
    EachColumn([&](int64_t i) HWY_ATTR {
      V max = Load(m_ + i);
      for (int64_t r = 0; r < in_ring; ++r)
        max = hn::Max(max, Load(ring_ + r * layout_.stride + i));
      Store(max, max_ + i);
    });
  }

  // Writes the table of the row's token i and advances to the next token.
  HWY_INLINE void Step(int64_t i, float* table) {
    const int64_t t = row_.position + i;
    LoadKey(i);
    int64_t column = 0;
    for (; column + 4 * Lanes() <= heads_; column += 4 * Lanes()) Weigh<4>(t, column, table);
    for (; column < heads_; column += Lanes()) Weigh<1>(t, column, table);
    Retire(t, table);
  }

  // Writes the state back.
  HWY_INLINE void Finish() const {
    CopyRow(den_, row_.d);
    CopyRow(m_, row_.m);
    const int64_t end = row_.position + row_.length;
    for (int64_t j = std::max(end - layout_.rows, row_.position); j < end; ++j) {
      const int64_t r = j % layout_.rows;
      CopyRow(ring_ + r * layout_.stride, state_ring_ + r * params_.heads);
    }
  }

 private:
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

  static HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(D())); }
  static HWY_INLINE V Load(const float* p) { return hn::LoadU(D(), p); }
  static HWY_INLINE void Store(V x, float* p) { hn::StoreU(x, D(), p); }

  template <class Fn>
  HWY_INLINE void EachColumn(const Fn& fn) const {
    for (int64_t i = 0; i < heads_; i += Lanes()) fn(i);
  }

  template <class From, class To>
  HWY_INLINE void CopyRow(const From* from, To* to) const {
    ConvCopy(from, to, heads_);
  }

  HWY_INLINE void LoadKey(int64_t i) const {
    CopyRow(row_.k + i * row_.packed_stride, key_);
    const V mask = hn::Set(D(), row_.mask == nullptr ? 0.0F : row_.mask[i]);
    EachColumn([&](int64_t h) HWY_ATTR {
      V k = Load(key_ + h);
      if (params_.ring == Number::kBf16) k = RoundToBf16(D(), k);
      k = row_.Masked(i) ? hn::Set(D(), kEmptyMax) : hn::Add(k, mask);
      Store(k, key_ + h);
      Store(hn::Max(Load(max_ + h), k), max_ + h);
    });
  }

  // The inputs of the weights of token t, for the heads of kVectors vectors.
  template <int kVectors>
  struct Columns {
    int64_t first;
    V max[kVectors];    // M, the largest of all keys so far
    V shift[kVectors];  // subtracted from exponents when biases are wide, or exp(x) could overflow
    V den[kVectors];

    // x = (K - M) + w. The difference comes first: the other order loses 4e-4 at |K| ~ 1e4.
    HWY_INLINE V Exponent(const float* keys, const float* bias, int v) const {
      const int64_t i = first + v * Lanes();
      return hn::Add(hn::Sub(Load(keys + i), max[v]), Load(bias + i));
    }
    HWY_INLINE V PrefixExponent(const float* m, int v) const {
      return hn::Sub(Load(m + first + v * Lanes()), max[v]);
    }
  };

  // Calls fn(row, its bias) for `n` rows of the ring from r on. `age` is the age of row r's token
  // and advances with the rows.
  template <class Fn>
  HWY_INLINE void EachRow(int64_t r, int64_t n, int64_t* age, const Fn& fn) const {
    for (int64_t j = 0; j < n; ++j) {
      fn(ring_ + (r + j) * layout_.stride, filter_ + *age * params_.heads);
      *age = *age == 1 ? layout_.rows : *age - 1;
    }
  }

  template <int kVectors>
  HWY_INLINE void Weigh(int64_t t, int64_t first, float* table) const {
    Columns<kVectors> columns;
    columns.first = first;
    const int64_t in_ring = std::min(t, layout_.rows);
    const int64_t oldest = in_ring > 0 ? (t - 1) % layout_.rows + 1 : 0;  // age of the ring's row 0
    for (int v = 0; v < kVectors; ++v) {
      columns.max[v] = Load(max_ + first + v * Lanes());
      columns.shift[v] = hn::Zero(D());
    }
    if (params_.wide_bias) {
      for (int v = 0; v < kVectors; ++v) {
        columns.shift[v] =
            hn::Max(columns.PrefixExponent(m_, v), columns.Exponent(key_, filter_, v));
      }
      int64_t age = oldest;
      EachRow(0, in_ring, &age, [&](const float* keys, const float* bias) HWY_ATTR {
        for (int v = 0; v < kVectors; ++v) {
          columns.shift[v] = hn::Max(columns.shift[v], columns.Exponent(keys, bias, v));
        }
      });
    }
    V e[2 * kVectors];
    for (int v = 0; v < kVectors; ++v) {
      e[v] = hn::Sub(columns.PrefixExponent(m_, v), columns.shift[v]);
      e[kVectors + v] = hn::Sub(columns.Exponent(key_, filter_, v), columns.shift[v]);
    }
    ExpEach<2 * kVectors>(D(), e);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = first + v * Lanes();
      columns.den[v] = hn::MulAdd(e[v], Load(den_ + i), e[kVectors + v]);
      Store(e[v], table + i);
      Store(e[kVectors + v], table + layout_.stride + i);
    }
    // Four exponentials are computed together; ExpEach says why.
    constexpr int kRows = 4 / kVectors;
    int64_t age = oldest;
    int64_t r = 0;
    float* weights = table + 2 * layout_.stride;
    for (; r + kRows <= in_ring; r += kRows) WeighRows<kRows>(r, &age, &columns, weights);
    for (; r < in_ring; ++r) WeighRows<1>(r, &age, &columns, weights);
    for (int v = 0; v < kVectors; ++v) {
      Store(columns.den[v], table + layout_.Den() + first + v * Lanes());
    }
  }

  template <int kRows, int kVectors>
  HWY_INLINE void WeighRows(int64_t r, int64_t* age, Columns<kVectors>* columns,
                            float* weights) const {
    V e[kRows * kVectors];
    int n = 0;
    EachRow(r, kRows, age, [&](const float* keys, const float* bias) HWY_ATTR {
      for (int v = 0; v < kVectors; ++v, ++n) {
        e[n] = hn::Sub(columns->Exponent(keys, bias, v), columns->shift[v]);
      }
    });
    ExpEach<kRows * kVectors>(D(), e);
    for (int j = 0; j < kRows; ++j) {
      for (int v = 0; v < kVectors; ++v) {
        const V weight = e[j * kVectors + v];
        columns->den[v] = hn::Add(columns->den[v], weight);
        Store(weight, weights + (r + j) * layout_.stride + columns->first + v * Lanes());
      }
    }
  }

  // Moves token t - s + 1 into the prefix and puts t in its place in the ring.
  HWY_INLINE void Retire(int64_t t, float* table) const {
    float* place = layout_.rows > 0 ? ring_ + t % layout_.rows * layout_.stride : key_;
    EachColumn([&](int64_t i) HWY_ATTR {
      if (t >= layout_.rows) {
        const V k = Load(place + i);
        const V m = Load(m_ + i);
        const V e = Exp(D(), hn::Neg(hn::Abs(hn::Sub(k, m))));
        // One of the two factors exp(m - m') and exp(k - m') is exactly 1.
        const auto rises = hn::Gt(k, m);
        const V one = hn::Set(D(), 1.0F);
        const V keep = hn::IfThenElse(rises, e, one);
        const V add = hn::IfThenElse(rises, one, e);
        Store(keep, table + layout_.Keep() + i);
        Store(add, table + layout_.Add() + i);
        Store(hn::MulAdd(Load(den_ + i), keep, add), den_ + i);
        Store(hn::Max(m, k), m_ + i);
      }
      Store(Load(key_ + i), place + i);
    });
  }

  const ConvParams& params_;
  const ConvScratch& layout_;
  const float* filter_;
  const ConvRow& row_;
  const int64_t heads_;
  Ring* state_ring_;
  float* ring_;  // fp32
  float* max_;   // M
  float* key_;
  float* den_;  // D and m of the prefix
  float* m_;
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
