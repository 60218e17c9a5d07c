// Common code of the AFT kernels, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "model/kernels/aft/aft.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/linear/bf16-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// One row of the batch, at the first channel of a tile.
struct Row {
  const float* q;  // keys and values are hid and 2 * hid floats further
  int64_t qkv_stride;
  float* y;
  int64_t y_stride;
  const float* mask;  // of the row's first token, or null
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
  // n at the tile's first channel; D and m are `stride` and 2 * stride floats further.
  float* prefix = nullptr;
  int64_t stride = 0;       // channels of a ring's row
  float* k_ring = nullptr;  // first row, first channel
  float* v_ring = nullptr;
  int64_t channel = 0;     // the tile's first channel, in the rings' rows
  float* ahead = nullptr;  // this tile's part of the slot's scratch (AheadTile), or null
  // Blocks of look-ahead begin where position + phase is a multiple of kAftLookahead. Every slot
  // has its own phase, so that sequences that started together do not all read rings in one step.
  int64_t phase = 0;
  const char* next = nullptr;  // bytes of the next row's state that StepTile fetches ahead
  int64_t next_bytes = 0;
};

template <int kCache>
HWY_INLINE void FetchBytes(const void* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const char* const first = static_cast<const char*>(from);
  for (int64_t i = 0; i < bytes; i += kLine) FetchLine<kCache>(first + i);
}

inline bool Masked(const Row& row, int64_t i) {
  return row.mask != nullptr && row.mask[i] <= kMaskedBelow;
}

// Elements of a ring.
struct Fp32Ring {
  static constexpr bool kRounds = false;
  static constexpr int64_t kBytes = 4;

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
  static constexpr int64_t kBytes = 2;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const float* ring, int64_t i) {
    return LoadBf16(d, reinterpret_cast<const uint16_t*>(ring) + i);
  }
  // v must have been rounded by RoundToBf16.
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, float* ring, int64_t i) {
    StoreBf16(d, v, reinterpret_cast<uint16_t*>(ring) + i);
  }
};

// Loads key and value of the row's token i: rounded first, then masked. A hidden token has the
// value 0 and the key kEmptyMax, which has no weight next to a visible key.
template <int kVectors, bool kRounds, class D, class V = hn::Vec<D>>
HWY_INLINE void LoadToken(D d, const Row& row, int64_t hid, int64_t i, V* k, V* v) {
  const float* from = row.q + i * row.qkv_stride + hid;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int j = 0; j < kVectors; ++j) {
    k[j] = hn::LoadU(d, from + j * lanes);
    v[j] = hn::LoadU(d, from + hid + j * lanes);
  }
  if constexpr (kRounds) {
    for (int j = 0; j < kVectors; ++j) {
      k[j] = RoundToBf16(d, k[j]);
      v[j] = RoundToBf16(d, v[j]);
    }
  }
  if (row.mask != nullptr) {
    const bool masked = Masked(row, i);
    for (int j = 0; j < kVectors; ++j) {
      k[j] = masked ? hn::Set(d, kEmptyMax) : hn::Add(k[j], hn::Set(d, row.mask[i]));
      if (masked) v[j] = hn::Zero(d);
    }
  }
}

// Computes x = [e v | e] with e = exp(k - anchor) from a token's k and v.
template <int kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void ToProductRow(D d, const V* k, const V* v, const V* anchor, V* x) {
  V* const e = x + kVectors;
  for (int i = 0; i < kVectors; ++i) e[i] = hn::Sub(k[i], anchor[i]);
  ExpEach<kVectors>(d, e);
  for (int i = 0; i < kVectors; ++i) x[i] = hn::Mul(e[i], v[i]);
}

// ToProductRow in memory: [k | v], each half kVectors vectors wide, becomes [e v | e]; row may be
// token. Returns whether all of it is finite. This matters because a product multiplies what a
// token does not see by 0.
template <int kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE bool MakeProductRow(D d, const float* token, const V* anchor, float* row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V kv[2 * kVectors];
  V x[2 * kVectors];
  for (int i = 0; i < 2 * kVectors; ++i) kv[i] = hn::LoadU(d, token + i * lanes);
  ToProductRow<kVectors>(d, kv, kv + kVectors, anchor, x);
  bool finite = true;
  for (int i = 0; i < 2 * kVectors; ++i) {
    hn::StoreU(x[i], d, row + i * lanes);
    finite = finite && hn::AllTrue(d, hn::IsFinite(x[i]));
  }
  return finite;
}

// Adds one token to (n, D, m); e = exp(-|k - m|). With the new maximum m', one of the two factors
// exp(m - m') and exp(k - m') is e, and the other is exactly 1.
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

// Stores sigmoid(q) * num / den for one token, or zeros if it sees no key.
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

// How a product is added to sums. kGoOn continues the chain of each sum with the product's terms,
// one by one. kWhole computes the product in a chain that begins at 0, and then adds it.
enum class AddBy { kGoOn, kWhole };

// num and den of kRows rows of sums, each [num | den], += weights times x:
//
//   sums[r][c] += sum_j weights[r][j] * x[j][c],   j < n, c < kColumns vectors
//
// Every sum is one chain of multiply-adds in the order of j, whatever kRows is.
template <AddBy kBy, int kRows, int kColumns, class D>
HWY_INLINE void AddProduct(D d, const float* const* weights, const float* x, int64_t x_stride,
                           int64_t n, float* sums, int64_t sums_stride) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[kRows][kColumns];
  const float* w[kRows];
  for (int r = 0; r < kRows; ++r) {
    w[r] = weights[r];
    for (int c = 0; c < kColumns; ++c) {
      sum[r][c] =
          kBy == AddBy::kWhole ? hn::Zero(d) : hn::LoadU(d, sums + r * sums_stride + c * lanes);
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
      float* const to = sums + r * sums_stride + c * lanes;
      if constexpr (kBy == AddBy::kWhole) sum[r][c] = hn::Add(sum[r][c], hn::LoadU(d, to));
      hn::StoreU(sum[r][c], d, to);
    }
  }
}

// The number of sums that stay in registers while AddProduct goes through x.
constexpr int kProductSums = AFT_MANY_REGISTERS ? 24 : 12;
constexpr int kProductRows = 6;

// The columns that AddProduct processes at once with kRows rows; kColumns is a power of two.
template <int kRows, int kColumns>
constexpr int kColumnsAtOnce = kColumns == 1 || kRows == 1 || kRows* kColumns <= kProductSums
                                   ? kColumns
                                   : kColumnsAtOnce<kRows, kColumns / 2>;

// AddProduct over all kColumns vectors of kRows rows.
template <AddBy kBy, int kRows, int kColumns, class D>
HWY_INLINE void AddProducts(D d, const float* const* weights, const float* x, int64_t n,
                            float* sums) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = kColumns * lanes;
  constexpr int kStep = kColumnsAtOnce<kRows, kColumns>;
  for (int c = 0; c < kColumns; c += kStep) {
    AddProduct<kBy, kRows, kStep>(d, weights, x + c * lanes, stride, n, sums + c * lanes, stride);
  }
}

// Adds the contribution of the tokens [first, end) to the sums of tokens t .. t + rows - 1, as far
// as they are in those tokens' windows; rows <= kRows. Each of the sums is [num | den]. x holds the
// tokens' product rows one after the other, and `finite` says whether all of x is finite.
template <int kRows, int kVectors, class D>
HWY_INLINE void AddWindows(D d, const AftBias& bias, int64_t t, int rows, int64_t first,
                           int64_t end, const float* x, bool finite, float* sums) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kColumns = 2 * kVectors;
  const auto weights_from = [&bias](int64_t row, int64_t j) {
    return bias.Row(row) + (j - row + bias.window - 1);
  };
  const float* weights[kRows];
  if (rows == kRows && finite) {
    for (int r = 0; r < kRows; ++r) weights[r] = weights_from(t + r, first);
    AddProducts<AddBy::kWhole, kRows, kColumns>(d, weights, x, end - first, sums);
    return;
  }
  for (int r = 0; r < rows; ++r) {
    const int64_t from = std::max(first, t + r - bias.window + 1);
    const int64_t to = std::min(end, t + r + 1);
    if (from >= to) continue;
    weights[0] = weights_from(t + r, from);
    AddProducts<AddBy::kWhole, 1, kColumns>(d, weights, x + (from - first) * kColumns * lanes,
                                            to - from, sums + r * kColumns * lanes);
  }
}

// Calls run(tag, vectors, channel) for tiles that cover channels [channel, end). A tile of four
// vectors keeps four independent chains in flight; narrower tiles cover the rest. A channel's
// result does not depend on the width of its tile.
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
