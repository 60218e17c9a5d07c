// AFT for prompt chunks, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "model/kernels/aft/aft_past-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// Runs a row as matrix products: with X_j = [e_j v_j | e_j], e_j = exp(k_j - anchor), the sums of a
// token are its prefix sums plus sum_j exp(w(t, j)) X_j over the window. X_j is computed once for
// as long as the anchor stays the same, and several tokens with one anchor are one small matrix
// product. Each sum is the same chain of multiply-adds as in StepTile, so both give the same bits.
// Wide biases are not supported.
template <int kVectors, class D, class Ring>
class ChunkTile {
 public:
  using V = hn::Vec<D>;

  // scratch: AftScratchFloats(). A chunk that is not `kept` does not write the rings.
  ChunkTile(D d, const AftParams& params, const Row& row, const TileState& state, float* scratch,
            bool kept)
      : d_(d),
        lanes_(static_cast<int64_t>(hn::Lanes(d))),
        width_(kVectors * lanes_),
        params_(params),
        window_(params.window()),
        ring_rows_(window_ - 1),
        capacity_(ring_rows_ + kAftChunkSlack),
        row_(row),
        kept_(kept),
        rings_(d, params, state),
        past_(d, params, state),
        visible_(params, row),
        tokens_(scratch),
        x_(scratch + capacity_ * 2 * width_) {}

  HWY_INLINE void Run() {
    const int64_t begin = row_.position;
    const int64_t end = begin + row_.length;
    base_ = std::max<int64_t>(begin - ring_rows_, 0);
    for (int64_t j = base_; j < begin; ++j) LoadRing(j);
    past_.Start(begin, [&](int64_t from, int64_t to, const auto& fn) HWY_ATTR {
      for (int64_t j = from; j < to; ++j) {
        V k[kVectors];
        Load(Key(j), k);
        fn(j, k);
      }
    });
    Read(begin, 0);
    SetAnchor();
    for (int64_t j = base_; j < begin; ++j) MakeX(j);

    for (int64_t t = begin; t < end;) {
      if (t + kProductRows + 1 - base_ > capacity_) MoveToFront(t);
      if (!SameAnchor()) {
        SetAnchor();
        for (int64_t j = std::max(base_, t - ring_rows_); j < t; ++j) MakeX(j);
      }
      int rows = 0;
      do {
        MakeX(t + rows);
        PastSums(t + rows, sums_ + rows * 2 * width_);
        ++rows;
        if (t + rows == end) break;
        Read(t + rows, rows);
      } while (rows < kProductRows && finite_ && SameAnchor());
      const int64_t first = std::max(t - ring_rows_, base_);
      AddWindows<kProductRows, kVectors>(d_, *params_.bias, t, rows, first, t + rows, X(first),
                                         finite_, sums_);
      for (int r = 0; r < rows; ++r) {
        V num[kVectors];
        V den[kVectors];
        Load(sums_ + r * 2 * width_, num);
        Load(sums_ + (r * 2 + 1) * width_, den);
        StoreGated<kVectors>(d_, row_, t + r - begin, sees_[r], num, den);
      }
      sees_[0] = sees_[rows];
      t += rows;
    }
    if (!kept_) return;
    for (int64_t j = std::max(begin, end - ring_rows_); j < end; ++j) {
      V k[kVectors];
      V v[kVectors];
      Load(Key(j), k);
      Load(Key(j) + width_, v);
      rings_.Store(rings_.Element(j), k, v);
    }
  }

 private:
  // The buffers hold the tokens from base_ on, as [k | v] and as X = [e v | e].
  HWY_INLINE float* Key(int64_t j) const { return tokens_ + (j - base_) * 2 * width_; }
  HWY_INLINE float* X(int64_t j) const { return x_ + (j - base_) * 2 * width_; }

  HWY_INLINE void Load(const float* from, V* x) const {
    for (int i = 0; i < kVectors; ++i) x[i] = hn::LoadU(d_, from + i * lanes_);
  }
  HWY_INLINE void Store(const V* x, float* to) const {
    for (int i = 0; i < kVectors; ++i) hn::StoreU(x[i], d_, to + i * lanes_);
  }

  HWY_INLINE void LoadRing(int64_t j) const {
    V k[kVectors];
    V v[kVectors];
    rings_.LoadKey(rings_.Element(j), k);
    rings_.LoadValue(rings_.Element(j), v);
    Store(k, Key(j));
    Store(v, Key(j) + width_);
  }

  // Reads token t, which will be row i of a product.
  HWY_INLINE void Read(int64_t t, int i) {
    V k[kVectors];
    V v[kVectors];
    if (ring_rows_ > 0) {
      LoadToken<kVectors, Ring::kRounds>(d_, row_, params_.hid, t - row_.position, k, v);
    } else {
      LoadToken<kVectors, false>(d_, row_, params_.hid, t - row_.position, k, v);
    }
    Store(k, Key(t));
    Store(v, Key(t) + width_);
    past_.Observe(t, k);
    sees_[i] = visible_(t - row_.position);
  }

  HWY_INLINE bool SameAnchor() const {
    bool same = true;
    for (int i = 0; i < kVectors; ++i) {
      same = same && hn::AllTrue(d_, hn::Eq(Anchor(d_, past_.Max(i)), anchor_[i]));
    }
    return same;
  }
  HWY_INLINE void SetAnchor() {
    for (int i = 0; i < kVectors; ++i) anchor_[i] = Anchor(d_, past_.Max(i));
  }

  HWY_INLINE void MakeX(int64_t j) {
    finite_ = MakeProductRow<kVectors>(d_, Key(j), anchor_, X(j)) && finite_;
  }

  // Computes the sums of token t over the tokens that have left its window. Afterwards the oldest
  // token of the window leaves it.
  HWY_INLINE void PastSums(int64_t t, float* sums) {
    V num[kVectors];
    V den[kVectors];
    past_.PrefixSums(t, anchor_, num, den);
    Store(num, sums);
    Store(den, sums + width_);
    if (t < ring_rows_) return;
    V k[kVectors];
    V v[kVectors];
    Load(Key(t - ring_rows_), k);
    Load(Key(t - ring_rows_) + width_, v);
    past_.Insert(t - ring_rows_, k, v);
  }

  // Moves the window of t, which has been read already, to the front of the buffers.
  HWY_INLINE void MoveToFront(int64_t t) {
    const int64_t first = std::max(t - ring_rows_, base_);
    const auto bytes = static_cast<size_t>((t + 1 - first) * 2 * width_) * sizeof(float);
    std::memmove(tokens_, Key(first), bytes);
    std::memmove(x_, X(first), bytes);
    base_ = first;
  }

  const D d_;
  const int64_t lanes_;
  const int64_t width_;
  const AftParams& params_;
  const int64_t window_;
  const int64_t ring_rows_;
  const int64_t capacity_;
  const Row& row_;
  const bool kept_;
  const Rings<kVectors, Ring, D> rings_;
  Past<kVectors, D> past_;
  Visible visible_;
  float* tokens_;
  float* x_;
  int64_t base_ = 0;
  bool finite_ = true;  // whether every X so far is
  V anchor_[kVectors];
  bool sees_[kProductRows + 1] = {};
  HWY_ALIGN float sums_[kProductRows * 2 * kVectors * HWY_MAX_BYTES / sizeof(float)];
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
