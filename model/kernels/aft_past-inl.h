// The causal AFT kernels' state, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/kernels/aft_tile-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// (n, D, m) of one channel tile in memory.
template <int kVectors, class D>
class Prefix {
 public:
  using V = hn::Vec<D>;

  Prefix(float* n, int64_t stride) : n_(n), d_(n + stride), m_(n + 2 * stride) {}

  HWY_INLINE void Reset(D d) const {
    for (int i = 0; i < kVectors; ++i) Set(d, i, hn::Zero(d), hn::Zero(d), hn::Set(d, kEmptyMax));
  }
  HWY_INLINE void Insert(D d, const V* k, const V* v) const {
    V e[kVectors];
    for (int i = 0; i < kVectors; ++i) e[i] = hn::Neg(hn::Abs(hn::Sub(k[i], Max(d, i))));
    ExpEach<kVectors>(d, e);
    for (int i = 0; i < kVectors; ++i) {
      V n = Num(d, i);
      V den = Den(d, i);
      V m = Max(d, i);
      AddToken(d, e[i], k[i], v[i], n, den, m);
      Set(d, i, n, den, m);
    }
  }

  HWY_INLINE V Num(D d, int i) const { return hn::LoadU(d, At(n_, d, i)); }
  HWY_INLINE V Den(D d, int i) const { return hn::LoadU(d, At(d_, d, i)); }
  HWY_INLINE V Max(D d, int i) const { return hn::LoadU(d, At(m_, d, i)); }
  HWY_INLINE void Set(D d, int i, V n, V den, V m) const {
    hn::StoreU(n, d, At(n_, d, i));
    hn::StoreU(den, d, At(d_, d, i));
    hn::StoreU(m, d, At(m_, d, i));
  }

 private:
  static HWY_INLINE float* At(float* p, D d, int i) { return p + i * hn::Lanes(d); }

  float* n_;
  float* d_;
  float* m_;
};

// The tokens that left the window, and the largest keys: one channel tile of one sequence.
template <int kVectors, class D>
class Past {
 public:
  using V = hn::Vec<D>;

  Past(D d, const AftParams& params, const TileState& state)
      : d_(d),
        window_(params.window()),
        prefix_block_(params.prefix_block),
        prefix_{{state.prefix, state.stride}, {state.prefix + 3 * state.stride, state.stride}} {}

  // Before the token at position t. ring_key(j, k) gives the key of token j, of the last s - 1.
  template <class RingKey>
  HWY_INLINE void Start(int64_t t, const RingKey& ring_key) {
    for (int i = 0; i < kVectors; ++i) block_max_[i] = before_max_[i] = hn::Set(d_, kEmptyMax);
    if (t == 0) {
      prefix_[0].Reset(d_);
      if (prefix_block_ > 0) prefix_[1].Reset(d_);
      return;
    }
    const int64_t block = BlockOf(t - 1);
    const int64_t block_start = block * prefix_block_;
    const int64_t last_inserted = t - std::max<int64_t>(window_, 1);
    for (int i = 0; i < kVectors; ++i) {
      if (last_inserted >= block_start) block_max_[i] = prefix_[block & 1].Max(d_, i);
      if (block > 0) before_max_[i] = prefix_[(block - 1) & 1].Max(d_, i);
    }
    for (int64_t j = std::max<int64_t>(t - window_ + 1, 0); j < t; ++j) {
      V k[kVectors];
      ring_key(j, k);
      V* max = j >= block_start ? block_max_ : before_max_;
      for (int i = 0; i < kVectors; ++i) max[i] = hn::Max(max[i], k[i]);
    }
  }

  // Takes in the key of the next token, t. The maximum is the exact one of copies of inputs, so
  // this running form gives the same bits as Start after a chunk's border.
  HWY_INLINE void Observe(int64_t t, const V* k) {
    const bool new_block = prefix_block_ > 0 && t % prefix_block_ == 0;
    for (int i = 0; i < kVectors; ++i) {
      if (new_block) {
        before_max_[i] = block_max_[i];
        block_max_[i] = k[i];
      } else {
        block_max_[i] = hn::Max(block_max_[i], k[i]);
      }
    }
  }

  // The largest key that the last observed token sees.
  HWY_INLINE V Max(int i) const { return hn::Max(before_max_[i], block_max_[i]); }

  // Calls fn for the sums that token t sees. The prefix of the block before t's holds that block
  // since its first token left the window. That of t's own block still holds the block two before
  // until then.
  template <class Fn>
  HWY_INLINE void ForPrefixes(int64_t t, const Fn& fn) const {
    const int64_t block = BlockOf(t);
    if (block > 0) fn(prefix_[(block - 1) & 1]);
    if (t - window_ >= block * prefix_block_) fn(prefix_[block & 1]);
  }

  // num and den: what the prefix sums bring to token t, relative to exp(anchor).
  HWY_INLINE void PrefixSums(int64_t t, const V* anchor, V* num, V* den) const {
    for (int i = 0; i < kVectors; ++i) num[i] = den[i] = hn::Zero(d_);
    ForPrefixes(t, [&](const Prefix<kVectors, D>& prefix) HWY_ATTR {
      V e[kVectors];
      for (int i = 0; i < kVectors; ++i) e[i] = hn::Sub(prefix.Max(d_, i), anchor[i]);
      ExpEach<kVectors>(d_, e);
      for (int i = 0; i < kVectors; ++i) {
        num[i] = hn::MulAdd(e[i], prefix.Num(d_, i), num[i]);
        den[i] = hn::MulAdd(e[i], prefix.Den(d_, i), den[i]);
      }
    });
  }

  // Moves a token into the sums.
  HWY_INLINE void Insert(int64_t token, const V* k, const V* v) const {
    const int64_t block = BlockOf(token);
    const Prefix<kVectors, D>& prefix = prefix_[block & 1];
    if (prefix_block_ > 0 && token == block * prefix_block_) prefix.Reset(d_);
    prefix.Insert(d_, k, v);
  }

 private:
  HWY_INLINE int64_t BlockOf(int64_t t) const { return prefix_block_ > 0 ? t / prefix_block_ : 0; }

  const D d_;
  const int64_t window_;
  const int64_t prefix_block_;
  const Prefix<kVectors, D> prefix_[2];
  V before_max_[kVectors];  // of the block before that of the last observed token
  V block_max_[kVectors];   // of its own block; of everything when H = 0
};

// Follows which tokens see an unmasked key.
class Visible {
 public:
  Visible(const AftParams& params, const Row& row) : params_(params), row_(row) {}

  // Whether the row's token i sees a key. Called for i = 0, 1, ...
  bool operator()(int64_t i) {
    if (row_.mask == nullptr) return true;
    if (!Masked(row_, i)) last_ = row_.position + i;
    const int64_t h = params_.prefix_block;
    const int64_t first = h > 0 ? ((row_.position + i) / h - 1) * h : 0;
    return last_ >= std::max<int64_t>(first, 0);
  }

 private:
  const AftParams& params_;
  const Row& row_;
  int64_t last_ = -1;  // unmasked token
};

// What exponents are taken relative to: the largest visible key M, rounded to a multiple of 32.
// exp(k - anchor) <= exp(16) of a key then stays the same from token to token, so that a prompt
// computes it once; M itself, at least exp(-16), keeps sums away from zero. Depends on visible keys
// alone, whatever the chunks.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Anchor(D d, V max) {
  return hn::Mul(hn::Round(hn::Mul(max, hn::Set(d, 1.0F / 32))), hn::Set(d, 32.0F));
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
