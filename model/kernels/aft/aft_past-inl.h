// The state of the causal AFT kernels, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/kernels/aft/aft_tile-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// The sums (n, D, m) of one channel tile in memory.
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

// One channel tile's sums of the tokens that have left the window, and its largest visible keys.
template <int kVectors, class D>
class Past {
 public:
  using V = hn::Vec<D>;

  Past(D d, const AftParams& params, const TileState& state)
      : d_(d),
        window_(params.window()),
        prefix_block_(params.prefix_block),
        prefix_{{state.prefix, state.stride}, {state.prefix + 3 * state.stride, state.stride}} {}

  // Prepares for the token at position t. for_keys(begin, end, fn) calls fn(j, k) with the keys of
  // tokens [begin, end), which are among the last s - 1.
  template <class ForKeys>
  HWY_INLINE void Start(int64_t t, const ForKeys& for_keys) {
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
    for_keys(std::max<int64_t>(t - window_ + 1, 0), t, [&](int64_t j, const V* k) HWY_ATTR {
      V* const max = j >= block_start ? block_max_ : before_max_;
      for (int i = 0; i < kVectors; ++i) max[i] = hn::Max(max[i], k[i]);
    });
  }

  // Restores the maxima that Save stored for the previous token. `before` is used only with prefix
  // blocks.
  HWY_INLINE void Resume(const float* block, const float* before) {
    for (int i = 0; i < kVectors; ++i) {
      block_max_[i] = hn::LoadU(d_, block + i * hn::Lanes(d_));
      before_max_[i] =
          prefix_block_ > 0 ? hn::LoadU(d_, before + i * hn::Lanes(d_)) : hn::Set(d_, kEmptyMax);
    }
  }
  HWY_INLINE void Save(float* block, float* before) const {
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreU(block_max_[i], d_, block + i * hn::Lanes(d_));
      if (prefix_block_ > 0) hn::StoreU(before_max_[i], d_, before + i * hn::Lanes(d_));
    }
  }

  // Adds the key of the next token, t, to the maxima. A maximum of inputs is never rounded, so this
  // running form gives the same bits as Start does after the border of a chunk.
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

  // Calls fn for the prefix sums that token t sees. The prefix of the block before t's block holds
  // that block, because its first token has left the window. The prefix of t's own block still
  // holds the block two before, until the first token of t's block leaves the window.
  template <class Fn>
  HWY_INLINE void ForPrefixes(int64_t t, const Fn& fn) const {
    const int64_t block = BlockOf(t);
    if (block > 0) fn(prefix_[(block - 1) & 1]);
    if (t - window_ >= block * prefix_block_) fn(prefix_[block & 1]);
  }

  // Sets num and den to the contribution of the prefix sums to token t, relative to exp(anchor).
  // The caller adds the contribution of the window, which may have been computed earlier.
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
  V before_max_[kVectors];  // the block before that of the last observed token
  V block_max_[kVectors];   // the block of the last observed token; all tokens when H = 0
};

// The tokens of the window before the current one, for one channel tile of one sequence.
template <int kVectors, class Ring, class D>
class Rings {
 public:
  using V = hn::Vec<D>;

  Rings(D d, const AftParams& params, const TileState& state)
      : d_(d), rows_(std::max<int64_t>(params.window() - 1, 0)), state_(state) {}

  int64_t rows() const { return rows_; }
  // The index of token j's first channel in both rings.
  HWY_INLINE int64_t Element(int64_t j) const { return j % rows_ * state_.stride + state_.channel; }
  // The index of the token after the one at `element`.
  HWY_INLINE int64_t After(int64_t element) const {
    element += state_.stride;
    return element < rows_ * state_.stride ? element : state_.channel;
  }
  // Calls fn(j, element) for the tokens [begin, end), which are among the last rows().
  template <class Fn>
  HWY_INLINE void ForEach(int64_t begin, int64_t end, const Fn& fn) const {
    if (begin >= end) return;
    int64_t element = Element(begin);
    for (int64_t j = begin; j < end; ++j, element = After(element)) fn(j, element);
  }
  template <int kCache>
  HWY_INLINE void Fetch(int64_t element) const {
    for (const float* ring : {state_.k_ring, state_.v_ring}) {
      FetchBytes<kCache>(reinterpret_cast<const char*>(ring) + element * Ring::kBytes,
                         kVectors * static_cast<int64_t>(hn::Lanes(d_)) * Ring::kBytes);
    }
  }
  HWY_INLINE void LoadKey(int64_t element, V* k) const { Load(state_.k_ring, element, k); }
  HWY_INLINE void LoadValue(int64_t element, V* v) const { Load(state_.v_ring, element, v); }
  HWY_INLINE V Value(int64_t element) const { return Ring::Load(d_, state_.v_ring, element); }
  HWY_INLINE void Store(int64_t element, const V* k, const V* v) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d_));
    for (int i = 0; i < kVectors; ++i) {
      Ring::Store(d_, k[i], state_.k_ring, element + i * lanes);
      Ring::Store(d_, v[i], state_.v_ring, element + i * lanes);
    }
  }

  // Computes the maxima of `past` before token t.
  HWY_INLINE void Start(int64_t t, Past<kVectors, D>& past) const {
    past.Start(t, [&](int64_t begin, int64_t end, const auto& fn) HWY_ATTR {
      ForEach(begin, end, [&](int64_t j, int64_t element) HWY_ATTR {
        V k[kVectors];
        LoadKey(element, k);
        fn(j, k);
      });
    });
  }

  // Updates the state after the output of t: the oldest token of the window, t - s + 1, enters the
  // prefix, and t takes its place in the ring.
  HWY_INLINE void Retire(int64_t t, const V* k, const V* v, const Past<kVectors, D>& past) const {
    if (rows_ == 0) {
      past.Insert(t, k, v);
      return;
    }
    const int64_t element = Element(t);
    if (t >= rows_) {
      V old_k[kVectors];
      V old_v[kVectors];
      LoadKey(element, old_k);
      LoadValue(element, old_v);
      past.Insert(t - rows_, old_k, old_v);
    }
    Store(element, k, v);
  }

 private:
  HWY_INLINE void Load(const float* ring, int64_t element, V* x) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d_));
    for (int i = 0; i < kVectors; ++i) x[i] = Ring::Load(d_, ring, element + i * lanes);
  }

  const D d_;
  const int64_t rows_;
  const TileState& state_;
};

// Tracks which tokens see an unmasked key.
class Visible {
 public:
  Visible(const AftParams& params, const Row& row) : params_(params), row_(row) {}

  // Whether token i of the row sees a key. It must be called for i = 0, 1, ... in this order.
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
  int64_t last_ = -1;  // the last unmasked token
};

// The anchor: exponents are relative to the largest visible key M, rounded to a multiple of 32. So
// exp(k - anchor) <= exp(16) of a key stays the same from token to token, and a prompt computes it
// once. The weight of M itself is at least exp(-16), which keeps the sums away from zero. The
// anchor depends on visible keys alone, however a sequence is cut into chunks.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Anchor(D d, V max) {
  return hn::Mul(hn::Round(hn::Mul(max, hn::Set(d, 1.0F / 32))), hn::Set(d, 32.0F));
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
