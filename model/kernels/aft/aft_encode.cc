// AFT where every token sees the whole sequence. All rows then have the same visible keys and one
// maximum M per channel, so that X_j = [e_j v_j | e_j], e_j = exp(K_j - M), is computed once:
//
//   sums_t = sum of X_j outside the window + sum over the window of exp(w(t, j)) X_j
//
// The sums of what lies before and after the window are running sums from the left and from the
// right, so only positive terms are added. Wide biases may raise a key whose e_j has underflowed,
// or lower the largest key. They compute exponents row by row, and their running sums have a
// maximum of their own.

#include <algorithm>
#include <cstdint>

#include "model/kernels/aft/aft.h"
#include "model/kernels/aft/aft_tile-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// One channel tile of one sequence.
template <int kVectors, class D>
class WholeTile {
 public:
  using V = hn::Vec<D>;

  // scratch: AftEncodeScratchFloats().
  WholeTile(D d, const AftParams& params, const Row& row, float* scratch)
      : d_(d),
        lanes_(static_cast<int64_t>(hn::Lanes(d))),
        width_(kVectors * lanes_),
        params_(params),
        window_(params.window()),
        tokens_(row.length),
        row_(row),
        x_(scratch),
        after_(scratch + tokens_ * 2 * width_) {}

  HWY_INLINE void Run() {
    bool any = false;
    for (int64_t j = 0; j < tokens_; ++j) any = any || !Masked(row_, j);
    if (!any) {
      for (int64_t t = 0; t < tokens_; ++t) {
        for (int i = 0; i < kVectors; ++i) {
          hn::StoreU(hn::Zero(d_), d_, row_.y + t * row_.y_stride + i * lanes_);
        }
      }
      return;
    }
    LoadTokens();
    if (params_.bias->wide) {
      RunWide();
    } else {
      RunNarrow();
    }
  }

 private:
  struct Sums {
    V n[kVectors];
    V den[kVectors];
    V m[kVectors];
  };

  // [k | v], later [e v | e].
  HWY_INLINE float* X(int64_t j) const { return x_ + j * 2 * width_; }
  // The sums of the tokens from j on: [n | D], and m when wide.
  HWY_INLINE float* After(int64_t j) const { return after_ + j * 3 * width_; }

  HWY_INLINE void Load(const float* from, V* x) const {
    for (int i = 0; i < kVectors; ++i) x[i] = hn::LoadU(d_, from + i * lanes_);
  }
  HWY_INLINE void Store(const V* x, float* to) const {
    for (int i = 0; i < kVectors; ++i) hn::StoreU(x[i], d_, to + i * lanes_);
  }

  HWY_INLINE void LoadTokens() {
    for (int i = 0; i < kVectors; ++i) max_[i] = hn::Set(d_, kEmptyMax);
    for (int64_t j = 0; j < tokens_; ++j) {
      V k[kVectors];
      V v[kVectors];
      LoadToken<kVectors, false>(d_, row_, params_.hid, j, k, v);
      for (int i = 0; i < kVectors; ++i) max_[i] = hn::Max(max_[i], k[i]);
      Store(k, X(j));
      Store(v, X(j) + width_);
    }
  }

  HWY_INLINE void RunNarrow() {
    for (int64_t j = 0; j < tokens_; ++j) MakeX(j);
    const bool outside = window_ > 0 && window_ < tokens_;
    if (outside) SumFromTheRight();
    V before[2 * kVectors];
    for (V& sum : before) sum = hn::Zero(d_);
    if (window_ == 0) {
      for (int64_t j = 0; j < tokens_; ++j) Add(j, before);
    }
    HWY_ALIGN float sums[kProductRows * 2 * kVectors * HWY_MAX_BYTES / sizeof(float)];
    const int rows_at_once = finite_ ? kProductRows : 1;
    for (int64_t t = 0; t < tokens_;) {
      const int rows = tokens_ - t >= rows_at_once ? rows_at_once : 1;
      for (int r = 0; r < rows; ++r) {
        if (outside && t + r >= window_) Add(t + r - window_, before);
        for (int i = 0; i < 2 * kVectors; ++i) {
          hn::StoreU(before[i], d_, sums + r * 2 * width_ + i * lanes_);
        }
        if (outside) AddAfter(t + r, sums + r * 2 * width_);
      }
      if (window_ > 0) AddWindows(t, rows, sums);
      for (int r = 0; r < rows; ++r) {
        V num[kVectors];
        V den[kVectors];
        Load(sums + r * 2 * width_, num);
        Load(sums + (r * 2 + 1) * width_, den);
        StoreGated<kVectors>(d_, row_, t + r, true, num, den);
      }
      t += rows;
    }
  }

  HWY_INLINE void MakeX(int64_t j) {
    // A product multiplies what lies outside a row's window by 0, so it needs finite numbers.
    finite_ = MakeProductRow<kVectors>(d_, X(j), max_, X(j)) && finite_;
  }

  HWY_INLINE void SumFromTheRight() const {
    V sum[2 * kVectors];
    for (V& s : sum) s = hn::Zero(d_);
    for (int64_t j = tokens_ - 1; j >= window_; --j) {
      for (int i = 0; i < 2 * kVectors; ++i) {
        sum[i] = hn::Add(sum[i], hn::LoadU(d_, X(j) + i * lanes_));
        hn::StoreU(sum[i], d_, After(j) + i * lanes_);
      }
    }
  }
  HWY_INLINE void Add(int64_t j, V* sums) const {
    for (int i = 0; i < 2 * kVectors; ++i) {
      sums[i] = hn::Add(sums[i], hn::LoadU(d_, X(j) + i * lanes_));
    }
  }
  HWY_INLINE void AddAfter(int64_t t, float* sums) const {
    if (t + window_ >= tokens_) return;
    for (int64_t i = 0; i < 2 * width_; i += lanes_) {
      const V after = hn::LoadU(d_, After(t + window_) + i);
      hn::StoreU(hn::Add(hn::LoadU(d_, sums + i), after), d_, sums + i);
    }
  }

  HWY_INLINE void AddWindows(int64_t t, int rows, float* sums) const {
    const int64_t first = std::max<int64_t>(t - window_ + 1, 0);
    const int64_t end = std::min(t + rows - 1 + window_, tokens_);
    const float* weights[kProductRows];
    for (int r = 0; r < rows; ++r) {
      weights[r] = params_.bias->Row(t + r) + (first - (t + r) + window_ - 1);
    }
    if (rows == kProductRows) {
      AddProducts<AddBy::kGoOn, kProductRows, 2 * kVectors>(d_, weights, X(first), end - first,
                                                            sums);
    } else {
      AddProducts<AddBy::kGoOn, 1, 2 * kVectors>(d_, weights, X(first), end - first, sums);
    }
  }

  HWY_INLINE void RunWide() {
    Sums sums = Empty();
    for (int64_t j = tokens_ - 1; j >= window_; --j) {
      Insert(j, sums);
      Store(sums.n, After(j));
      Store(sums.den, After(j) + width_);
      Store(sums.m, After(j) + 2 * width_);
    }
    Sums before = Empty();
    for (int64_t t = 0; t < tokens_; ++t) {
      if (t >= window_) Insert(t - window_, before);
      Sums after = Empty();
      if (t + window_ < tokens_) {
        Load(After(t + window_), after.n);
        Load(After(t + window_) + width_, after.den);
        Load(After(t + window_) + 2 * width_, after.m);
      }
      WideRow(t, before, after);
    }
  }

  HWY_INLINE Sums Empty() const {
    Sums sums;
    for (int i = 0; i < kVectors; ++i) {
      sums.n[i] = sums.den[i] = hn::Zero(d_);
      sums.m[i] = hn::Set(d_, kEmptyMax);
    }
    return sums;
  }
  HWY_INLINE void Insert(int64_t j, Sums& sums) const {
    V k[kVectors];
    V v[kVectors];
    Load(X(j), k);
    Load(X(j) + width_, v);
    V e[kVectors];
    for (int i = 0; i < kVectors; ++i) e[i] = hn::Neg(hn::Abs(hn::Sub(k[i], sums.m[i])));
    ExpEach<kVectors>(d_, e);
    for (int i = 0; i < kVectors; ++i) {
      AddToken(d_, e[i], k[i], v[i], sums.n[i], sums.den[i], sums.m[i]);
    }
  }

  // Exponents are x_j = (K_j - M) + w_j, the difference first, then relative to the largest x_j.
  HWY_INLINE void WideRow(int64_t t, const Sums& before, const Sums& after) const {
    const int64_t first = std::max<int64_t>(t - window_ + 1, 0);
    const int64_t end = std::min(t + window_, tokens_);
    const float* w = params_.bias->Row(t) + (window_ - 1 - t);
    V largest[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      largest[i] = hn::Sub(hn::Max(before.m[i], after.m[i]), max_[i]);
    }
    for (int64_t j = first; j < end; ++j) {
      const V bias = hn::Set(d_, w[j]);
      V k[kVectors];
      Load(X(j), k);
      for (int i = 0; i < kVectors; ++i) {
        largest[i] = hn::Max(largest[i], hn::Add(hn::Sub(k[i], max_[i]), bias));
      }
    }
    V num[kVectors];
    V den[kVectors];
    for (int i = 0; i < kVectors; ++i) num[i] = den[i] = hn::Zero(d_);
    for (const Sums* sums : {&before, &after}) {
      for (int i = 0; i < kVectors; ++i) {
        const V e = Exp(d_, hn::Sub(hn::Sub(sums->m[i], max_[i]), largest[i]));
        num[i] = hn::MulAdd(e, sums->n[i], num[i]);
        den[i] = hn::MulAdd(e, sums->den[i], den[i]);
      }
    }
    for (int64_t j = first; j < end; ++j) {
      const V bias = hn::Set(d_, w[j]);
      V e[kVectors];
      V v[kVectors];
      Load(X(j), e);
      Load(X(j) + width_, v);
      for (int i = 0; i < kVectors; ++i) {
        e[i] = hn::Sub(hn::Add(hn::Sub(e[i], max_[i]), bias), largest[i]);
      }
      ExpEach<kVectors>(d_, e);
      for (int i = 0; i < kVectors; ++i) {
        num[i] = hn::MulAdd(e[i], v[i], num[i]);
        den[i] = hn::Add(den[i], e[i]);
      }
    }
    StoreGated<kVectors>(d_, row_, t, true, num, den);
  }

  const D d_;
  const int64_t lanes_;
  const int64_t width_;
  const AftParams& params_;
  const int64_t window_;
  const int64_t tokens_;
  const Row& row_;
  float* x_;
  float* after_;
  bool finite_ = true;  // whether every X is
  V max_[kVectors];     // of all visible keys
};

void EncodeWhole(const AftParams& params, const SequenceBatch& batch, const float* qkv,
                 int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                 int64_t end) {
  const int64_t tiles = AftUnits(params, 1);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t sequence = unit / tiles;
    const int64_t first = unit % tiles * kAftTile;
    ForTiles(first, std::min(first + kAftTile, params.hid),
             [&](auto d, auto vectors, int64_t channel) HWY_ATTR {
               const Row row = SequenceRow(batch, sequence, channel, qkv, qkv_stride, y, y_stride);
               WholeTile<decltype(vectors)::value, decltype(d)>(d, params, row, scratch).Run();
             });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(EncodeWhole);

void AftEncode(const AftParams& params, const SequenceBatch& batch, const float* qkv,
               int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
               int64_t end) {
  if (params.bias->causal) {
    AftEncodeCausal(params, batch, qkv, qkv_stride, y, y_stride, scratch, begin, end);
    return;
  }
  HWY_DYNAMIC_DISPATCH(EncodeWhole)
  (params, batch, qkv, qkv_stride, y, y_stride, scratch, begin, end);
}

int64_t AftEncodeScratchFloats(const AftParams& params, int64_t tokens) {
  if (params.bias->causal) return AftEncodeCausalScratchFloats(params);
  return 5 * kAftTile * tokens;  // WholeTile: X and After
}

}  // namespace aft::kernels
#endif
