// What the AFT kernels share, compiled once per instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "model/kernels/aft.h"
#include "model/kernels/bf16-inl.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// Key of a masked token; its value is 0. Beside any other key it weighs nothing.
constexpr float kMaskedKey = -1e32F;

// One row of the batch, at the first channel of a tile.
struct Row {
  const float* q;  // keys and values lie hid and 2 * hid further
  int64_t qkv_stride;
  float* y;
  int64_t y_stride;
  const float* mask;  // of the first token, or null
  int64_t position;
  int64_t length;
};

// A whole sequence, at the first channel of a tile.
inline Row SequenceRow(const SequenceBatch& batch, int64_t sequence, int64_t channel,
                       const float* qkv, int64_t qkv_stride, float* y, int64_t y_stride) {
  const int64_t token = batch.offset[sequence];
  return {qkv + token * qkv_stride + channel,
          qkv_stride,
          y + token * y_stride + channel,
          y_stride,
          batch.mask == nullptr ? nullptr : batch.mask + token,
          0,
          batch.offset[sequence + 1] - token};
}

// One channel tile's part of a state.
struct TileState {
  float* prefix;   // n at the tile's first channel; D and m lie `stride` and 2 * stride further
  int64_t stride;  // channels of a ring's row
  float* k_ring;   // first row, first channel
  float* v_ring;
  int64_t channel;   // the tile's first one, in the rings' rows
  const char* next;  // bytes of the next row's state that this tile fetches ahead; null: none
  int64_t next_bytes;
};

inline bool Masked(const Row& row, int64_t i) {
  return row.mask != nullptr && row.mask[i] <= kMaskedBelow;
}

// Elements of a ring.
struct Fp32Ring {
  static constexpr bool kRounds = false;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const float* ring, int64_t i) {
    return hn::LoadU(d, ring + i);
  }
  template <class D>
  static HWY_INLINE void Store([[maybe_unused]] D d, hn::Vec<D> v, float* ring, int64_t i) {
    hn::StoreU(v, d, ring + i);
  }
};

struct Bf16Ring {
  static constexpr bool kRounds = true;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const float* ring, int64_t i) {
    return LoadBf16(d, reinterpret_cast<const uint16_t*>(ring) + i);
  }
  // v has been through RoundToBf16.
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, float* ring, int64_t i) {
    StoreBf16(d, v, reinterpret_cast<uint16_t*>(ring) + i);
  }
};

// Key and value of the row's token i as they enter: masked, rounded.
template <int kVectors, bool kRounds, class D, class V = hn::Vec<D>>
HWY_INLINE void LoadToken(D d, const Row& row, int64_t hid, int64_t i, V* k, V* v) {
  const float* from = row.q + i * row.qkv_stride + hid;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int j = 0; j < kVectors; ++j) {
    k[j] = hn::LoadU(d, from + j * lanes);
    v[j] = hn::LoadU(d, from + hid + j * lanes);
  }
  if (row.mask != nullptr) {
    const bool masked = Masked(row, i);
    for (int j = 0; j < kVectors; ++j) {
      k[j] = masked ? hn::Set(d, kMaskedKey) : hn::Add(k[j], hn::Set(d, row.mask[i]));
      if (masked) v[j] = hn::Zero(d);
    }
  }
  if constexpr (kRounds) {
    for (int j = 0; j < kVectors; ++j) {
      k[j] = RoundToBf16(d, k[j]);
      v[j] = RoundToBf16(d, v[j]);
    }
  }
}

// [k | v] of a token, the halves kVectors vectors wide -> [e v | e] with e = exp(k - anchor); may
// be in place. Whether all of it is finite.
template <int kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE bool MakeProductRow(D d, const float* token, const V* anchor, float* row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kVectors * lanes;
  V e[kVectors];
  V v[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    e[i] = hn::Sub(hn::LoadU(d, token + i * lanes), anchor[i]);
    v[i] = hn::LoadU(d, token + width + i * lanes);
  }
  ExpEach<kVectors>(d, e);
  bool finite = true;
  for (int i = 0; i < kVectors; ++i) {
    v[i] = hn::Mul(e[i], v[i]);
    hn::StoreU(v[i], d, row + i * lanes);
    hn::StoreU(e[i], d, row + width + i * lanes);
    finite = finite && hn::AllTrue(d, hn::IsFinite(v[i])) && hn::AllTrue(d, hn::IsFinite(e[i]));
  }
  return finite;
}

// (n, D, m) <- the same with one more token; e = exp(-|k - m|). One of the two factors exp(m - m')
// and exp(k - m') is e, the other exactly 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void AddToken(D d, V e, V k, V v, V& n, V& den, V& m) {
  const auto rises = hn::Gt(k, m);
  const V one = hn::Set(d, 1.0F);
  const V keep = hn::IfThenElse(rises, e, one);
  const V add = hn::IfThenElse(rises, one, e);
  n = hn::MulAdd(add, v, hn::Mul(n, keep));
  den = hn::MulAdd(den, keep, add);
  m = hn::Max(m, k);
}

// sigmoid(q) * num / den for one token; zeros when it sees no key.
template <int kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void StoreGated(D d, const Row& row, int64_t i, bool sees, const V* num, const V* den) {
  const float* q = row.q + i * row.qkv_stride;
  float* y = row.y + i * row.y_stride;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V gate[kVectors];
  for (int j = 0; j < kVectors; ++j) gate[j] = hn::LoadU(d, q + j * lanes);
  OnePlusExpNegEach<kVectors>(d, gate);
  for (int j = 0; j < kVectors; ++j) {
    const V gated = hn::Div(num[j], hn::Mul(den[j], gate[j]));
    hn::StoreU(sees ? gated : hn::Zero(d), d, y + j * lanes);
  }
}

// num and den of kRows rows of sums, each [num | den], += weights times x:
//
//   sums[r][c] += sum_j weights[r][j] * x[j][c],   j < n, c < kColumns vectors
//
// Every sum is one chain of multiply-adds in the order of j, whatever kRows is.
template <int kRows, int kColumns, class D>
HWY_INLINE void AddProduct(D d, const float* const* weights, const float* x, int64_t x_stride,
                           int64_t n, float* sums, int64_t sums_stride) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[kRows][kColumns];
  const float* w[kRows];
  for (int r = 0; r < kRows; ++r) {
    w[r] = weights[r];
    for (int c = 0; c < kColumns; ++c) {
      sum[r][c] = hn::LoadU(d, sums + r * sums_stride + c * lanes);
    }
  }
  for (int64_t j = 0; j < n; ++j, x += x_stride) {
    V column[kColumns];
    for (int c = 0; c < kColumns; ++c) column[c] = hn::LoadU(d, x + c * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, w[r][j]);
      for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::MulAdd(weight, column[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      hn::StoreU(sum[r][c], d, sums + r * sums_stride + c * lanes);
    }
  }
}

// Rows that AddProduct takes at once, and columns: all sums stay in registers.
constexpr int kProductRows = 6;
constexpr int kProductColumns = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// AddProduct over all kColumns vectors of kRows rows.
template <int kRows, int kColumns, class D>
HWY_INLINE void AddProducts(D d, const float* const* weights, const float* x, int64_t n,
                            float* sums) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = kColumns * lanes;
  constexpr int kStep = kRows == 1 || kColumns < kProductColumns ? kColumns : kProductColumns;
  for (int c = 0; c < kColumns; c += kStep) {
    AddProduct<kRows, kStep>(d, weights, x + c * lanes, stride, n, sums + c * lanes, stride);
  }
}

// Calls run(tag, vectors, channel) for tiles that cover channels [channel, end). Four vectors at
// once keep four independent chains in flight; the rest goes in narrower steps. A channel's result
// does not depend on which of these it falls into.
template <int kVectors, class D, class Run>
HWY_INLINE void ForTilesOf(D d, int64_t* channel, int64_t end, const Run& run) {
  const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(d));
  for (; *channel + width <= end; *channel += width) {
    run(d, std::integral_constant<int, kVectors>(), *channel);
  }
}
template <class Run>
HWY_INLINE void ForTiles(int64_t channel, int64_t end, const Run& run) {
  const hn::ScalableTag<float> d;
  ForTilesOf<4>(d, &channel, end, run);
  ForTilesOf<1>(d, &channel, end, run);
  ForTilesOf<1>(hn::CappedTag<float, 4>(), &channel, end, run);
  ForTilesOf<1>(hn::CappedTag<float, 1>(), &channel, end, run);
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
