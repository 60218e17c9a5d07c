// Every token sees every other one, so the largest key M of a head is the same for all of them.
// Exponentials are computed once per token, E = exp(K - M), and once per tap when the model is
// loaded:
//
//   den_t = outside * sum of E beyond the filter's reach + sum over its taps of weight * E
//
// The numerator is computed likewise from U = E * v. The sums beyond the filter's reach are running
// sums from both ends of a row. In 2-D they are running sums over the columns of the rows within
// reach, plus sums of whole rows. Only positive terms are added, and nothing is subtracted.
//
// Terms below exp(-87) of the largest are lost. That matters only where the key with the largest
// weight is far below M, which takes a filter with |w| of 60 and more. The denominator is then
// small, and such rows are computed again in double, from their definition.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "model/kernels/aft/aft.h"
#include "model/kernels/conv/conv-inl.h"
#include "model/kernels/conv/conv.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"

namespace aft::kernels {

// The number of neighbouring outputs in the innermost loop, which share the loads of weights.
constexpr int64_t kAcross = 8;
// Denominators below this may have lost terms.
constexpr float kTrusted = 1e-26F;

// A sequence as rows and columns; in 1-D there is one row. A plane holds kConvTile numbers per
// token, with zeros between the rows, so that taps beyond a row's ends need no test.
struct ConvGrid {
  ConvGrid(const ConvEncodeParams& params, int64_t tokens, int64_t columns)
      : width(params.grid ? columns : tokens),
        height(params.grid ? tokens / columns : 1),
        reach((params.taps - 1) / 2),
        row_reach(params.grid ? reach : 0) {}

  int64_t At(int64_t row, int64_t column) const {
    return (reach + row * (width + reach) + column) * kConvTile;
  }
  int64_t PlaneFloats() const { return At(height, kAcross); }

  int64_t width;
  int64_t height;
  int64_t reach;      // taps on each side of the centre
  int64_t row_reach;  // rows above and below the centre
};

struct ConvEncodeScratch {
  ConvEncodeScratch(const ConvEncodeParams& params, int64_t tokens) {
    // A grid's padding is largest with one column.
    const ConvGrid grid(params, tokens, 1);
    const int64_t outputs = (tokens + kAcross) * kConvTile;
    const int64_t filter = params.taps * (params.grid ? params.taps : 1);
    key = 0;
    value = key + grid.PlaneFloats();
    den = value + grid.PlaneFloats();
    num = den + outputs;
    column_sums = num + outputs;
    row_sums = column_sums + tokens * kConvTile;
    weight = row_sums + grid.height * kConvTile;
    outside = weight + filter * kConvTile;
    max = outside + kConvTile;
    floats = max + kConvTile;
  }

  int64_t key, value;             // planes: E, U
  int64_t den, num;               // [tokens, kConvTile]
  int64_t column_sums, row_sums;  // sums of the columns within reach of a row [width, kConvTile];
                                  // of whole rows [height, kConvTile]
  int64_t weight, outside;        // a tile's channels: [taps, kConvTile], [kConvTile]
  int64_t max;                    // M
  int64_t floats;
};

// One sequence and unit. Pointers are to the unit's first channel or head.
struct ConvSequence {
  const float* q;
  const float* k;
  const float* v;
  int64_t packed_stride;
  const float* mask;
  float* y;
  int64_t y_stride;
  int64_t tokens;
  int64_t head;   // in the layer
  int64_t heads;  // of this unit

  bool Masked(int64_t t) const { return mask != nullptr && mask[t] <= kMaskedBelow; }
};

// Computes token t of head i (in the unit) from the definition; `weights` holds a float per token.
inline void ConvEncodeExactly(const ConvEncodeParams& params, const ConvGrid& grid,
                              const ConvSequence& sequence, int64_t t, int64_t i, float* weights) {
  const auto exponent = [&](int64_t key) {
    double x = sequence.k[key * sequence.packed_stride + i];
    if (sequence.mask != nullptr) x += sequence.mask[key];
    const int64_t row = key / grid.width - t / grid.width + grid.row_reach;
    const int64_t column = key % grid.width - t % grid.width + grid.reach;
    if (row < 0 || row > 2 * grid.row_reach || column < 0 || column > 2 * grid.reach) return x;
    return x + params.bias[(row * params.taps + column) * params.heads + sequence.head + i];
  };
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < sequence.tokens; ++j) {
    if (!sequence.Masked(j)) max = std::max(max, exponent(j));
  }
  double den = 0;
  for (int64_t j = 0; j < sequence.tokens; ++j) {
    const double weight = sequence.Masked(j) ? 0 : std::exp(exponent(j) - max);
    weights[j] = static_cast<float>(weight);
    den += weight;
  }
  const int64_t width = params.hid / params.heads;
  for (int64_t c = i * width; c < (i + 1) * width; ++c) {
    double num = 0;
    for (int64_t j = 0; j < sequence.tokens; ++j) {
      if (weights[j] > 0) num += weights[j] * double{sequence.v[j * sequence.packed_stride + c]};
    }
    const double gate = 1 + std::exp(-double{sequence.q[t * sequence.packed_stride + c]});
    sequence.y[t * sequence.y_stride + c] = static_cast<float>(num / (den * gate));
  }
}

}  // namespace aft::kernels

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

class ConvEncodeUnit {
 public:
  ConvEncodeUnit(const ConvEncodeParams& params, const ConvGrid& grid, const ConvSequence& sequence,
                 const ConvEncodeScratch& layout, float* scratch)
      : params_(params),
        grid_(grid),
        sequence_(sequence),
        head_width_(params.hid / params.heads),
        filter_(params.taps * (2 * grid.row_reach + 1)),
        key_(scratch + layout.key),
        value_(scratch + layout.value),
        den_(scratch + layout.den),
        num_(scratch + layout.num),
        column_sums_(scratch + layout.column_sums),
        row_sums_(scratch + layout.row_sums),
        weight_(scratch + layout.weight),
        outside_(scratch + layout.outside),
        max_(scratch + layout.max) {}

  void Run() const {
    const int64_t channels = sequence_.heads * head_width_;
    if (!LoadKeys()) {
      for (int64_t t = 0; t < sequence_.tokens; ++t) {
        std::fill_n(sequence_.y + t * sequence_.y_stride, channels, 0.0F);
      }
      return;
    }
    Convolve(key_, params_.weight + sequence_.head, params_.heads, params_.outside + sequence_.head,
             sequence_.heads, den_);
    std::fill_n(value_, grid_.PlaneFloats(), 0.0F);
    for (int64_t c = 0; c < channels; c += kConvTile) {
      RunTile(c, std::min(kConvTile, channels - c));
    }
    for (int64_t t = 0; t < sequence_.tokens; ++t) {
      for (int64_t i = 0; i < sequence_.heads; ++i) {
        if (den_[t * kConvTile + i] < kTrusted) {
          ConvEncodeExactly(params_, grid_, sequence_, t, i, num_);
        }
      }
    }
  }

 private:
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

  static HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(D())); }
  static HWY_INLINE V Load(const float* p) { return hn::LoadU(D(), p); }
  static HWY_INLINE void Store(V x, float* p) { hn::StoreU(x, D(), p); }

  // Calls fn(t, offset in a plane) for the tokens that are not masked.
  template <class Fn>
  HWY_INLINE void EachKey(const Fn& fn) const {
    int64_t t = 0;
    for (int64_t r = 0; r < grid_.height; ++r) {
      for (int64_t c = 0; c < grid_.width; ++c, ++t) {
        if (!sequence_.Masked(t)) fn(t, grid_.At(r, c));
      }
    }
  }

  // Fills the plane of E. Returns false when every token is masked.
  bool LoadKeys() const {
    std::fill_n(key_, grid_.PlaneFloats(), 0.0F);
    std::fill_n(max_, kConvTile, kEmptyMax);
    bool any = false;
    EachKey([&](int64_t t, int64_t at) HWY_ATTR {
      any = true;
      float* key = key_ + at;
      std::memcpy(key, sequence_.k + t * sequence_.packed_stride,
                  static_cast<size_t>(sequence_.heads) * sizeof(float));
      const V mask = hn::Set(D(), sequence_.mask == nullptr ? 0.0F : sequence_.mask[t]);
      for (int64_t i = 0; i < sequence_.heads; i += Lanes()) {
        const V x = hn::Add(Load(key + i), mask);
        Store(x, key + i);
        Store(hn::Max(Load(max_ + i), x), max_ + i);
      }
    });
    EachKey([&](int64_t /*t*/, int64_t at) HWY_ATTR {
      for (int64_t i = 0; i < sequence_.heads; i += Lanes()) {
        const V x = hn::Sub(Load(key_ + at + i), Load(max_ + i));
        // exp() would round these results up to 2^-126. NaN stays NaN.
        const auto lost = hn::Lt(x, hn::Set(D(), -87.0F));
        Store(hn::IfThenElse(lost, hn::Zero(D()), Exp(D(), x)), key_ + at + i);
      }
    });
    return any;
  }

  // Computes `n` channels of the unit from `channel` on.
  void RunTile(int64_t channel, int64_t n) const {
    ConvCover(n, [&](auto d, int64_t c) HWY_ATTR {
      const ConvSpread<1, decltype(d)> spread(d, channel + c, head_width_);
      for (int64_t j = 0; j < filter_; ++j) {
        const float* tap = params_.weight + j * params_.heads + sequence_.head;
        hn::StoreU(spread(tap, 0), d, weight_ + j * kConvTile + c);
      }
      hn::StoreU(spread(params_.outside + sequence_.head, 0), d, outside_ + c);
      EachKey([&](int64_t t, int64_t at) HWY_ATTR {
        const float* v = sequence_.v + t * sequence_.packed_stride + channel + c;
        hn::StoreU(hn::Mul(spread(key_ + at, 0), hn::LoadU(d, v)), d, value_ + at + c);
      });
    });
    Convolve(value_, weight_, kConvTile, outside_, n, num_);
    ConvCover(n, [&](auto d, int64_t c) HWY_ATTR {
      const ConvSpread<1, decltype(d)> spread(d, channel + c, head_width_);
      for (int64_t t = 0; t < sequence_.tokens; ++t) {
        const float* q = sequence_.q + t * sequence_.packed_stride + channel + c;
        const auto den =
            hn::Mul(spread(den_ + t * kConvTile, 0), OnePlusExpNeg(d, hn::LoadU(d, q)));
        const auto y = hn::Div(hn::LoadU(d, num_ + t * kConvTile + c), den);
        hn::StoreU(y, d, sequence_.y + t * sequence_.y_stride + channel + c);
      }
    });
  }

  // out[t] = outside * sum of the plane x beyond the filter's reach from t + sum over the filter's
  // taps of weight * x, for `columns` numbers per token.
  HWY_NOINLINE void Convolve(const float* x, const float* weight, int64_t weight_stride,
                             const float* outside, int64_t columns, float* out) const {
    for (int64_t i = 0; i < columns; i += Lanes()) {
      SumRows(x + i);
      for (int64_t r = 0; r < grid_.height; ++r) {
        SumOutside(x + i, r, Load(outside + i), out + r * grid_.width * kConvTile + i);
        for (int64_t c = 0; c < grid_.width; c += kAcross) {
          AddTaps(x + i, weight + i, weight_stride, r, c,
                  out + (r * grid_.width + c) * kConvTile + i);
        }
      }
    }
  }

  HWY_INLINE void SumRows(const float* x) const {
    for (int64_t r = 0; r < grid_.height && grid_.height > 1; ++r) {
      V sum = hn::Zero(D());
      for (int64_t c = 0; c < grid_.width; ++c) sum = hn::Add(sum, Load(x + grid_.At(r, c)));
      Store(sum, row_sums_ + r * kConvTile);
    }
  }

  HWY_INLINE int64_t FirstRow(int64_t r) const { return std::max(r - grid_.row_reach, int64_t{0}); }
  HWY_INLINE int64_t LastRow(int64_t r) const {
    return std::min(r + grid_.row_reach, grid_.height - 1);
  }

  // The first summand of Convolve, for row r.
  HWY_INLINE void SumOutside(const float* x, int64_t r, V outside, float* out) const {
    const float* band = x + grid_.At(FirstRow(r), 0);
    if (FirstRow(r) < LastRow(r)) {
      for (int64_t c = 0; c < grid_.width; ++c) {
        V sum = Load(x + grid_.At(FirstRow(r), c));
        for (int64_t row = FirstRow(r) + 1; row <= LastRow(r); ++row) {
          sum = hn::Add(sum, Load(x + grid_.At(row, c)));
        }
        Store(sum, column_sums_ + c * kConvTile);
      }
      band = column_sums_;
    }
    V after = hn::Zero(D());
    for (int64_t c = grid_.width - 1; c >= 0; --c) {
      if (c + grid_.reach + 1 < grid_.width) {
        after = hn::Add(after, Load(band + (c + grid_.reach + 1) * kConvTile));
      }
      Store(after, out + c * kConvTile);
    }
    V before = hn::Zero(D());
    for (int64_t row = 0; row < grid_.height; ++row) {
      if (row < FirstRow(r) || row > LastRow(r)) {
        before = hn::Add(before, Load(row_sums_ + row * kConvTile));
      }
    }
    for (int64_t c = 0; c < grid_.width; ++c) {
      if (c > grid_.reach) {
        before = hn::Add(before, Load(band + (c - grid_.reach - 1) * kConvTile));
      }
      Store(hn::Mul(hn::Add(before, Load(out + c * kConvTile)), outside), out + c * kConvTile);
    }
  }

  // The second summand, for the kAcross columns from c on. Sums of columns beyond the end of the
  // row are computed too, but not stored.
  HWY_INLINE void AddTaps(const float* x, const float* weight, int64_t weight_stride, int64_t r,
                          int64_t c, float* out) const {
    const int64_t n = std::min(kAcross, grid_.width - c);
    V sums[kAcross];
    for (int64_t b = 0; b < kAcross; ++b) sums[b] = Load(out + b * kConvTile);
    for (int64_t row = FirstRow(r); row <= LastRow(r); ++row) {
      const float* from = x + grid_.At(row, c - grid_.reach);
      const float* w = weight + (row - r + grid_.row_reach) * params_.taps * weight_stride;
      for (int64_t j = 0; j < params_.taps; ++j, from += kConvTile, w += weight_stride) {
        const V tap = Load(w);
        for (int64_t b = 0; b < kAcross; ++b) {
          sums[b] = hn::MulAdd(tap, Load(from + b * kConvTile), sums[b]);
        }
      }
    }
    for (int64_t b = 0; b < n; ++b) Store(sums[b], out + b * kConvTile);
  }

  const ConvEncodeParams& params_;
  const ConvGrid& grid_;
  const ConvSequence& sequence_;
  const int64_t head_width_;
  const int64_t filter_;  // the number of all taps
  float* key_;
  float* value_;
  float* den_;
  float* num_;
  float* column_sums_;
  float* row_sums_;
  float* weight_;
  float* outside_;
  float* max_;
};

void ConvEncodeImpl(const ConvEncodeParams& params, const SequenceBatch& batch, const float* packed,
                    int64_t packed_stride, float* y, int64_t y_stride, float* scratch,
                    int64_t begin, int64_t end) {
  const int64_t width = params.hid / params.heads;
  const int64_t heads = ConvHeadsPerUnit(params.hid, params.heads);
  const int64_t per_sequence = ConvUnits(params.hid, params.heads, 1);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t first = batch.offset[unit / per_sequence];
    const int64_t tokens = batch.offset[unit / per_sequence + 1] - first;
    const int64_t head = unit % per_sequence * heads;
    const float* in = packed + first * packed_stride;
    const ConvSequence sequence = {in + head * width,
                                   in + params.hid + head,
                                   in + params.hid + params.heads + head * width,
                                   packed_stride,
                                   batch.mask == nullptr ? nullptr : batch.mask + first,
                                   y + first * y_stride + head * width,
                                   y_stride,
                                   tokens,
                                   head,
                                   std::min(heads, params.heads - head)};
    if (tokens == 0) continue;
    const ConvGrid grid(params, tokens, batch.grid_width);
    const ConvEncodeScratch layout(params, tokens);
    ConvEncodeUnit(params, grid, sequence, layout, scratch).Run();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(ConvEncodeImpl);

int64_t ConvEncodeScratchFloats(const ConvEncodeParams& params, int64_t tokens) {
  return ConvEncodeScratch(params, tokens).floats;
}

void ConvEncode(const ConvEncodeParams& params, const SequenceBatch& batch, const float* packed,
                int64_t packed_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                int64_t end) {
  HWY_DYNAMIC_DISPATCH(ConvEncodeImpl)
  (params, batch, packed, packed_stride, y, y_stride, scratch, begin, end);
}

}  // namespace aft::kernels
#endif
