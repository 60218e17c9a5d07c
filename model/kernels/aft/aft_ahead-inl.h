// AFT's decode steps with look-ahead, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "model/kernels/aft/aft_past-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// Runs a row of one token with look-ahead (README.md). A block is kAftLookahead consecutive tokens.
// It begins with one pass over the ring, which computes the ring's part of the window sums of every
// token in the block. Each token then adds the tokens of its block before it, and itself. Terms are
// added in the order of StepTile and ChunkTile and relative to the same anchor, so the bits are the
// same wherever a block begins. The sums are recomputed where there are none, and when the anchor
// changes. REQUIRES: AftSlotScratchFloats() > 0.
//
// A tile's part of the slot's scratch is contiguous, in rows of the tile's width:
//
//   kMark        the token that the other rows are for; two rows
//   kBeforeMax   a maximum of Past, with prefix blocks only
//   kBlockMax    the other maximum of Past
//   kPairs + 2a  token a of the block: its sums [num | den], and after its step its product row
template <int kVectors, class D, class Ring>
class AheadTile {
  static_assert(kAftLookahead <= AftBias::kPadding);

 public:
  using V = hn::Vec<D>;

  // scratch: AftScratchFloats().
  AheadTile(D d, const AftParams& params, const Row& row, const TileState& state, float* scratch)
      : d_(d),
        lanes_(static_cast<int64_t>(hn::Lanes(d))),
        width_(kVectors * lanes_),
        params_(params),
        row_(row),
        state_(state),
        age_(Age(state, row.position)),
        rings_(d, params, state),
        past_(d, params, state),
        e_(scratch) {}

  static void Forget(D d, const TileState& state) {
    std::fill_n(state.ahead, 2 * kVectors * hn::Lanes(d), 0.0F);
  }

  // Fetches what Run will read first for this tile, except most of the rings. States come from
  // memory when many sequences are live.
  static HWY_INLINE void Fetch(D d, const AftParams& params, const Row& row,
                               const TileState& state) {
    constexpr int64_t kFloat = sizeof(float);
    const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(d));
    for (int64_t i = 0; i < 3; ++i)
      FetchBytes<kSecondCache>(row.q + i * params.hid, width * kFloat);
    for (int64_t i = 0; i < (params.prefix_block > 0 ? 6 : 3); ++i) {
      FetchBytes<kSecondCache>(state.prefix + i * state.stride, width * kFloat);
    }
    const int64_t age = Age(state, row.position);
    const int64_t first = params.prefix_block > 0 ? kBeforeMax : kBlockMax;
    const int64_t end = kPairs + 2 * (age > 0 ? age + 1 : kAftLookahead);
    FetchBytes<kSecondCache>(state.ahead, sizeof(int64_t));
    FetchBytes<kSecondCache>(state.ahead + first * width, (end - first) * width * kFloat);
    const Rings<kVectors, Ring, D> rings(d, params, state);
    rings.template Fetch<kSecondCache>(rings.Element(row.position));
  }

  // Whether the row begins a block, and so reads its whole ring.
  static bool Begins(const TileState& state, const Row& row) {
    return Age(state, row.position) == 0;
  }

  // Fetches one of kAftLookahead parts of this tile of the ring, into the second cache.
  static HWY_INLINE void FetchRing(D d, const AftParams& params, const TileState& state,
                                   int64_t part) {
    const Rings<kVectors, Ring, D> rings(d, params, state);
    const int64_t end = rings.rows() * (part + 1) / kAftLookahead;
    int64_t j = rings.rows() * part / kAftLookahead;
    for (int64_t element = rings.Element(j); j < end; ++j) {
      rings.template Fetch<kSecondCache>(element);
      element = rings.After(element);
    }
  }

  HWY_INLINE void Run() {
    const int64_t t = row_.position;
    V k[kVectors];
    V v[kVectors];
    LoadToken<kVectors, Ring::kRounds>(d_, row_, params_.hid, 0, k, v);
    // Whether the scratch belongs to the previous token, and which one of its block made the sums.
    const int64_t mark = Mark();
    const bool follows = t > 0 && mark / kAftLookahead == t;
    int64_t made_at = mark % kAftLookahead;
    if (follows) {
      past_.Resume(At(kBlockMax), At(kBeforeMax));
    } else {
      rings_.Start(t, past_);
    }
    bool made = follows && age_ > 0;
    V anchor[kVectors];
    for (int i = 0; i < kVectors; ++i) anchor[i] = Anchor(d_, past_.Max(i));
    past_.Observe(t, k);
    for (int i = 0; i < kVectors; ++i) {
      const V now = Anchor(d_, past_.Max(i));
      made = made && hn::AllTrue(d_, hn::Eq(now, anchor[i]));
      anchor[i] = now;
    }
    V x[2 * kVectors];
    V sums[2 * kVectors];
    if (!made) {
      made_at = age_;
      SumRing(t, anchor);
    }
    Load(Pair(age_), sums);
    for (int64_t a = made_at; a < age_; ++a) {
      Load(Pair(a), x);
      AddTo(sums, Weight(t, age_ - a), x);
    }
    ToProductRow<kVectors>(d_, k, v, anchor, x);
    AddTo(sums, Weight(t, 0), x);
    Store(x, Pair(age_));
    V past[2 * kVectors];
    past_.PrefixSums(t, anchor, past, past + kVectors);
    for (int i = 0; i < 2 * kVectors; ++i) past[i] = hn::Add(sums[i], past[i]);
    StoreGated<kVectors>(d_, row_, 0, true, past, past + kVectors);

    past_.Save(At(kBlockMax), At(kBeforeMax));
    SetMark((t + 1) * kAftLookahead + made_at);
    rings_.Retire(t, k, v, past_);
  }

 private:
  static constexpr int64_t kMark = 0;
  static constexpr int64_t kBeforeMax = 2;
  static constexpr int64_t kBlockMax = 3;
  static constexpr int64_t kPairs = 4;
  static_assert(kPairs + 2 * kAftLookahead == kAftScratchRows);
  // Tokens whose sums stay in registers while a vector of the ring's tokens is added.
  static constexpr int kTokensAtOnce = AFT_MANY_REGISTERS ? kAftLookahead : kAftLookahead / 2;

  // The index of the token in its block.
  static int64_t Age(const TileState& state, int64_t position) {
    return (position + state.phase) % kAftLookahead;
  }
  HWY_INLINE float* At(int64_t row) const { return state_.ahead + row * width_; }
  HWY_INLINE float* Pair(int64_t age) const { return At(kPairs + 2 * age); }
  int64_t Mark() const {
    int64_t mark = 0;
    std::memcpy(&mark, At(kMark), sizeof(mark));
    return mark;
  }
  void SetMark(int64_t mark) const { std::memcpy(At(kMark), &mark, sizeof(mark)); }

  HWY_INLINE void Load(const float* from, V* x) const {
    for (int i = 0; i < 2 * kVectors; ++i) x[i] = hn::LoadU(d_, from + i * lanes_);
  }
  HWY_INLINE void Store(const V* x, float* to) const {
    for (int i = 0; i < 2 * kVectors; ++i) hn::StoreU(x[i], d_, to + i * lanes_);
  }

  // exp(w) for token t and the token `age` positions before it.
  HWY_INLINE V Weight(int64_t t, int64_t age) const {
    return hn::Set(d_, params_.bias->Row(t)[params_.window() - 1 - age]);
  }
  static HWY_INLINE void AddTo(V* sums, V weight, const V* x) {
    for (int i = 0; i < 2 * kVectors; ++i) sums[i] = hn::MulAdd(weight, x[i], sums[i]);
  }

  // Computes the ring's contribution to t and to the later tokens of its block.
  HWY_INLINE void SumRing(int64_t t, const V* anchor) {
    constexpr int64_t kTokens = 32;  // processed at a time, in the L1 cache
    constexpr int64_t kFetched = 8;  // tokens to prefetch ahead
    const int64_t oldest = std::max<int64_t>(t - rings_.rows(), 0);
    int64_t fetched = rings_.Element(oldest + kFetched);
    int64_t first = oldest;
    do {  // also without a token, because the sums are 0 then
      const int64_t end = std::min(first + kTokens, t);
      rings_.ForEach(first, end, [&](int64_t j, int64_t element) HWY_ATTR {
        rings_.template Fetch<kFirstCache>(fetched);
        fetched = rings_.After(fetched);
        V e[kVectors];
        rings_.LoadKey(element, e);
        for (int i = 0; i < kVectors; ++i) e[i] = hn::Sub(e[i], anchor[i]);
        ExpEach<kVectors>(d_, e);
        for (int i = 0; i < kVectors; ++i) {
          hn::StoreU(e[i], d_, e_ + (j - first) * width_ + i * lanes_);
        }
      });
      for (int i = 0; i < kVectors; ++i) {
        for (int64_t r = 0; age_ + r < kAftLookahead; r += kTokensAtOnce) {
          AddTokens(t + r, age_ + r, first, end, first > oldest, i * lanes_);
        }
      }
      first = end;
    } while (first < t);
  }

  // Adds the ring's tokens [first, end) to the sums of tokens t, t + 1, ... of the block, the first
  // of which has the age `age`, as far as they are in these tokens' windows. Vector `lane` of each.
  HWY_INLINE void AddTokens(int64_t t, int64_t age, int64_t first, int64_t end, bool goes_on,
                            int64_t lane) const {
    const int64_t tokens = std::min<int64_t>(kTokensAtOnce, kAftLookahead - age);
    V num[kTokensAtOnce];
    V den[kTokensAtOnce];
    const float* w[kTokensAtOnce];  // w[r][j - first] is the weight of token j for token t + r
    for (int r = 0; r < kTokensAtOnce; ++r) {
      w[r] = params_.bias->Row(t + r) + params_.window() - 1 - (t + r - first);
      num[r] = den[r] = hn::Zero(d_);
      if (!goes_on || r >= tokens) continue;
      num[r] = hn::LoadU(d_, Pair(age + r) + lane);
      den[r] = hn::LoadU(d_, Pair(age + r) + width_ + lane);
    }
    const float* e = e_ + lane;
    int64_t element = rings_.Element(first);
    const auto add = [&](int64_t j, int r, V e_v, V e_j) HWY_ATTR {
      const V weight = hn::Set(d_, w[r][j]);
      num[r] = hn::MulAdd(weight, e_v, num[r]);
      den[r] = hn::MulAdd(weight, e_j, den[r]);
    };
    // Token t + r sees token j if r <= j - oldest.
    const int64_t oldest = t - rings_.rows();
    const int64_t whole = std::clamp(oldest + kTokensAtOnce - 1, first, end) - first;
    for (int64_t j = 0; j < end - first; ++j, e += width_) {
      const V e_j = hn::LoadU(d_, e);
      const V e_v = hn::Mul(e_j, rings_.Value(element + lane));
      element = rings_.After(element);
      if (j < whole) {
        for (int r = 0; r < kTokensAtOnce; ++r) {
          if (r <= first + j - oldest) add(j, r, e_v, e_j);
        }
      } else {
        for (int r = 0; r < kTokensAtOnce; ++r) add(j, r, e_v, e_j);
      }
    }
    for (int r = 0; r < kTokensAtOnce; ++r) {
      if (r >= tokens) break;
      hn::StoreU(num[r], d_, Pair(age + r) + lane);
      hn::StoreU(den[r], d_, Pair(age + r) + width_ + lane);
    }
  }

  const D d_;
  const int64_t lanes_;
  const int64_t width_;
  const AftParams& params_;
  const Row& row_;
  const TileState& state_;
  const int64_t age_;
  const Rings<kVectors, Ring, D> rings_;
  Past<kVectors, D> past_;
  float* const e_;
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
