// AFT token by token, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "model/kernels/aft/aft_past-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// AFT-simple without blocks. The sums stay in registers. y = n / (D * gate), because n and D are
// already relative to the largest key.
template <int kVectors, class D>
HWY_INLINE void SimpleTile(D d, const AftParams& params, const Row& row, const TileState& state) {
  using V = hn::Vec<D>;
  const Prefix<kVectors, D> prefix(state.prefix, state.stride);
  if (row.position == 0) prefix.Reset(d);
  V n[kVectors];
  V den[kVectors];
  V m[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    n[i] = prefix.Num(d, i);
    den[i] = prefix.Den(d, i);
    m[i] = prefix.Max(d, i);
  }
  Visible visible(params, row);
  for (int64_t t = 0; t < row.length; ++t) {
    V k[kVectors];
    V v[kVectors];
    LoadToken<kVectors, false>(d, row, params.hid, t, k, v);
    V e[kVectors];
    for (int i = 0; i < kVectors; ++i) e[i] = hn::Neg(hn::Abs(hn::Sub(k[i], m[i])));
    ExpEach<kVectors>(d, e);
    for (int i = 0; i < kVectors; ++i) AddToken(d, e[i], k[i], v[i], n[i], den[i], m[i]);
    StoreGated<kVectors>(d, row, t, visible(t), n, den);
  }
  for (int i = 0; i < kVectors; ++i) prefix.Set(d, i, n[i], den[i], m[i]);
}

// Runs a row token by token on the state in place. It serves decode steps and all rows that
// ChunkTile does not support.
template <int kVectors, class D, class Ring>
class StepTile {
 public:
  using V = hn::Vec<D>;

  StepTile(D d, const AftParams& params, const Row& row, const TileState& state)
      : d_(d),
        lanes_(static_cast<int64_t>(hn::Lanes(d))),
        params_(params),
        window_(params.window()),
        row_(row),
        state_(state),
        rings_(d, params, state),
        past_(d, params, state) {}

  HWY_INLINE void Run() {
    PrefetchToken();
    rings_.Start(row_.position, past_);
    Visible visible(params_, row_);
    for (int64_t i = 0; i < row_.length; ++i) {
      if (params_.bias->wide) {
        Step<true>(row_.position + i, i, visible(i));
      } else {
        Step<false>(row_.position + i, i, visible(i));
      }
    }
  }

 private:
  template <bool kWide>
  HWY_INLINE void Step(int64_t t, int64_t i_token, bool visible) {
    V k[kVectors];
    V v[kVectors];
    if (rings_.rows() > 0) {
      LoadToken<kVectors, Ring::kRounds>(d_, row_, params_.hid, i_token, k, v);
    } else {
      LoadToken<kVectors, false>(d_, row_, params_.hid, i_token, k, v);
    }
    past_.Observe(t, k);
    if (window_ == 0) past_.Insert(t, k, v);

    // w[-age] is the weight (when wide: the bias) of token t - age.
    const float* w = window_ > 0 ? params_.bias->Row(t) + window_ - 1 : nullptr;
    V anchor[kVectors];
    if constexpr (kWide) {
      WideAnchor(t, k, w, anchor);
    } else {
      for (int i = 0; i < kVectors; ++i) anchor[i] = Anchor(d_, past_.Max(i));
    }
    V num[kVectors];
    V den[kVectors];
    for (int i = 0; i < kVectors; ++i) num[i] = den[i] = hn::Zero(d_);
    if constexpr (kWide) {
      past_.ForPrefixes(t, [&](const Prefix<kVectors, D>& prefix) HWY_ATTR {
        for (int i = 0; i < kVectors; ++i) {
          const V x = hn::Sub(prefix.Max(d_, i), past_.Max(i));
          const V e = Exp(d_, hn::Sub(x, anchor[i]));
          num[i] = hn::MulAdd(e, prefix.Num(d_, i), num[i]);
          den[i] = hn::MulAdd(e, prefix.Den(d_, i), den[i]);
        }
      });
    }
    // The difference of keys comes before the bias: the other order loses up to 5e-4 at |K| = 1e4.
    const auto add = [&](const V* key, const V* value, float weight) HWY_ATTR {
      const V bias = hn::Set(d_, weight);
      V e[kVectors];
      for (int i = 0; i < kVectors; ++i) {
        if constexpr (kWide) {
          e[i] = hn::Sub(hn::Add(hn::Sub(key[i], past_.Max(i)), bias), anchor[i]);
        } else {
          e[i] = hn::Sub(key[i], anchor[i]);
        }
      }
      ExpEach<kVectors>(d_, e);
      for (int i = 0; i < kVectors; ++i) {
        if constexpr (kWide) {
          num[i] = hn::MulAdd(e[i], value[i], num[i]);
          den[i] = hn::Add(den[i], e[i]);
        } else {
          num[i] = hn::MulAdd(bias, hn::Mul(e[i], value[i]), num[i]);
          den[i] = hn::MulAdd(bias, e[i], den[i]);
        }
      }
    };
    const int64_t lines =
        state_.next == nullptr
            ? 0
            : state_.next_bytes / (kLine * std::max<int64_t>(rings_.rows(), 1)) + 1;
    ForRing(t, [&](int64_t age, int64_t element) HWY_ATTR {
      PrefetchState(lines);
      V ring_k[kVectors];
      V ring_v[kVectors];
      rings_.LoadKey(element, ring_k);
      rings_.LoadValue(element, ring_v);
      add(ring_k, ring_v, w[-age]);
    });
    if (window_ > 0) add(k, v, w[0]);
    if constexpr (!kWide) {
      V past_num[kVectors];
      V past_den[kVectors];
      past_.PrefixSums(t, anchor, past_num, past_den);
      for (int i = 0; i < kVectors; ++i) {
        num[i] = hn::Add(num[i], past_num[i]);
        den[i] = hn::Add(den[i], past_den[i]);
      }
    }
    StoreGated<kVectors>(d_, row_, i_token, visible, num, den);
    if (window_ > 0) rings_.Retire(t, k, v, past_);
  }

  // Sets `largest` to the largest exponent relative to M, with the bias.
  HWY_INLINE void WideAnchor(int64_t t, const V* k, const float* w, V* largest) const {
    for (int i = 0; i < kVectors; ++i) {
      largest[i] = hn::Add(hn::Sub(k[i], past_.Max(i)), hn::Set(d_, w[0]));
    }
    past_.ForPrefixes(t, [&](const Prefix<kVectors, D>& prefix) HWY_ATTR {
      for (int i = 0; i < kVectors; ++i) {
        largest[i] = hn::Max(largest[i], hn::Sub(prefix.Max(d_, i), past_.Max(i)));
      }
    });
    ForRing(t, [&](int64_t age, int64_t element) HWY_ATTR {
      const V bias = hn::Set(d_, w[-age]);
      V ring_k[kVectors];
      rings_.LoadKey(element, ring_k);
      for (int i = 0; i < kVectors; ++i) {
        largest[i] = hn::Max(largest[i], hn::Add(hn::Sub(ring_k[i], past_.Max(i)), bias));
      }
    });
  }

  // Calls fn(age, element) for the ring's tokens before t, oldest first.
  template <class Fn>
  HWY_INLINE void ForRing(int64_t t, const Fn& fn) const {
    rings_.ForEach(std::max<int64_t>(t - rings_.rows(), 0), t,
                   [&](int64_t j, int64_t element) HWY_ATTR { fn(t - j, element); });
  }

  // Decode steps read each state once, and from memory when many sequences are live. The tiles of
  // one row together fetch the state of the next row in the order of its addresses: `lines` cache
  // lines with each token of the ring.
  HWY_INLINE void PrefetchState(int64_t lines) {
    for (; lines > 0 && prefetched_ < state_.next_bytes; --lines, prefetched_ += kLine) {
      FetchLine<kSecondCache>(state_.next + prefetched_);
    }
  }

  // Fetches the next row's token.
  HWY_INLINE void PrefetchToken() const {
    if (state_.next == nullptr) return;
    for (int i = 0; i < kVectors; ++i) {
      const float* q = row_.q + row_.qkv_stride + i * lanes_;
      hwy::Prefetch(q);
      hwy::Prefetch(q + params_.hid);
      hwy::Prefetch(q + 2 * params_.hid);
      hwy::Prefetch(row_.y + row_.y_stride + i * lanes_);
    }
  }

  static constexpr int64_t kLine = 64;

  const D d_;
  const int64_t lanes_;
  const AftParams& params_;
  const int64_t window_;
  const Row& row_;
  const TileState& state_;
  const Rings<kVectors, Ring, D> rings_;
  Past<kVectors, D> past_;
  int64_t prefetched_ = 0;  // bytes of the next state
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
