// The core of softmax attention, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "model/kernels/attention/attention.h"
#include "model/kernels/attention/attention_tile.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// Several queries of one head process ranges of keys, 64 keys at a time, with an online softmax:
//
//   m' = max(m, max_j s_j);  e = exp(m - m');  p_j = exp(s_j - m')
//   den = e * den + sum_j p_j;  acc = e * acc + sum_j p_j v_j
//
// Only positive terms are added, and maxima run over visible keys alone. For each query every
// number above is one fixed chain of operations over the keys in their order, 64 at a time from the
// start of a range. The score s_j is a chain over the columns of q and k, and acc a chain over j.
// So a query's bits do not depend on the other queries of the tile, which only share its loads.
class AttentionTile {
 public:
  // score_weight: the head's weights, for kAdditive. scratch: AttentionTileFloats(max_rows).
  AttentionTile(const AttentionParams& params, const float* score_weight, int64_t max_rows,
                float* scratch)
      : score_(params.score),
        score_width_(params.score_width),
        value_width_(params.value_width),
        score_weight_(score_weight),
        scores_(scratch),
        den_(scores_ + max_rows * kKeyGroup),
        q_(den_ + max_rows * 16),
        acc_(q_ + max_rows * score_width_),
        max_(acc_ + max_rows * value_width_),
        scale_(max_ + max_rows) {
    if (score_ == Score::kAdditive) {
      for (int64_t i = 0; i < score_width_; ++i) score_weight_sum_ += score_weight_[i];
    }
  }

  // Begins `rows` <= max_rows queries. q points to the first query; queries are `stride` floats
  // apart. factor[r] multiplies query r.
  void Start(int64_t rows, const float* q, int64_t stride, const float* factor) {
    rows_ = rows;
    int64_t row = 0;
    for (; row + kTall <= rows; row += kTall) StartGroup<kTall>(row, q, stride, factor);
    for (; row + kShort <= rows; row += kShort) StartGroup<kShort>(row, q, stride, factor);
    for (; row < rows; ++row) StartGroup<1>(row, q, stride, factor);
  }

  void Add(const KeyRange& range) {
    int64_t keys = 0;
    for (int64_t row = 0; row < rows_; ++row) keys = std::max(keys, range.Seen(row));
    for (int64_t key = 0; key < keys; key += kKeyGroup) {
      const Step step = {range, key, range.k + key * score_width_,
                         range.bias == nullptr ? nullptr : range.bias + key};
      int64_t row = 0;
      for (; row + kTall <= rows_; row += kTall) AddGroup<kTall>(row, step);
      for (; row + kShort <= rows_; row += kShort) AddGroup<kShort>(row, step);
      for (; row < rows_; ++row) AddGroup<1>(row, step);
    }
  }

  // y = acc / den; 0 for queries that saw no key.
  void Finish(float* y, int64_t stride) {
    for (int64_t row = 0; row < rows_; ++row) {
      const float den = hn::GetLane(hn::SumOfLanes(d_, hn::LoadU(d_, den_ + row * kLanes)));
      const float* acc = acc_ + row * value_width_;
      float* to = y + row * stride;
      if (den == 0.0F) {
        std::fill_n(to, value_width_, 0.0F);
        continue;
      }
      for (int64_t c = 0; c < value_width_; ++c) to[c] = acc[c] / den;
    }
  }

 private:
  using Tag = hn::CappedTag<float, 16>;
  using V = hn::Vec<Tag>;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  // The numbers of queries that share the loads of keys and values, limited by the registers that
  // their sums need. Tiles are cut into groups of kTall, then kShort, then 1.
#if AFT_MANY_REGISTERS
  static constexpr int kTall = 12;
  static constexpr int kShort = 4;
  static constexpr bool kPrefetches = false;
#else
  static constexpr int kTall = 6;
  static constexpr int kShort = 2;
  static constexpr bool kPrefetches = true;
#endif

  // 64 keys of the current range.
  struct Step {
    const KeyRange& range;
    int64_t first;  // the first key
    const float* k;
    const float* bias;

    // The number of these keys that a query sees.
    int64_t Seen(int64_t row) const {
      return std::clamp<int64_t>(range.Seen(row) - first, 0, kKeyGroup);
    }
    const float* Values(int64_t row, int64_t width) const {
      return (range.row_v == nullptr ? range.v : range.row_v[row]) + first * width;
    }
  };

  template <int kRows>
  HWY_INLINE void StartGroup(int64_t row, const float* q, int64_t stride, const float* factor) {
    float* to = q_ + row * score_width_;
    for (int64_t c = 0; c < score_width_; ++c) {
      for (int r = 0; r < kRows; ++r)
        to[c * kRows + r] = q[(row + r) * stride + c] * factor[row + r];
    }
    std::fill_n(acc_ + row * value_width_, kRows * value_width_, 0.0F);
    std::fill_n(den_ + row * kLanes, kRows * kLanes, 0.0F);
    std::fill_n(max_ + row, kRows, kHiddenScore);
  }

  template <int kRows>
  HWY_INLINE void AddGroup(int64_t row, const Step& step) {
    int64_t most = 0;
    int64_t least = kKeyGroup;
    for (int64_t r = row; r < row + kRows; ++r) {
      most = std::max(most, step.Seen(r));
      least = std::min(least, step.Seen(r));
    }
    if (most == 0) return;
    const int64_t blocks = (most + kKeyBlock - 1) / kKeyBlock;
    if (score_ == Score::kAdditive) {
      ScoreAdditive<kRows>(row, step.k, blocks);
    } else {
      ScoreDot<kRows>(row, step.k, blocks);
    }
    for (int64_t r = row; r < row + kRows; ++r) {
      if (step.Seen(r) > 0) Weigh(r, step.Seen(r), step.bias);
    }
    // The keys that all queries see are added together, the others for each query by itself.
    if (step.range.row_v != nullptr) least = 0;
    if (least > 0) AddValues<kRows>(row, 0, least, step.Values(row, value_width_), true);
    if (least == most) return;
    for (int64_t r = row; r < row + kRows; ++r) {
      const int64_t seen = step.Seen(r);
      if (seen > least) AddValues<1>(r, least, seen, step.Values(r, value_width_), least == 0);
    }
  }

  // A single query reads its keys and values once, and from memory when many sequences are live. So
  // the next 64 keys are fetched while these are computed. With 512-bit vectors the CPU's own
  // prefetcher suffices.
  template <int64_t kFloats>
  static HWY_INLINE void PrefetchNext(const float* p, int64_t width) {
    constexpr int64_t kLine = 16;
    for (int64_t i = 0; i < kFloats; i += kLine) hwy::Prefetch(p + kKeyGroup * width + i);
  }

  template <int kRows>
  HWY_INLINE void ScoreDot(int64_t row, const float* k, int64_t blocks) {
    // If registers allow, a single query reads whole rows of a block, so in address order.
    constexpr int64_t kMost = kRows == 1 ? 8 : kRows == kShort ? 4 : 2;
    constexpr int kVectors = static_cast<int>(std::min(kMost, kKeyBlock / kLanes));
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = 0; i < kKeyBlock; i += kVectors * kLanes) {
        ScoreDotVectors<kRows, kVectors>(row, k + block * kKeyBlock * score_width_ + i,
                                         scores_ + row * kKeyGroup + block * kKeyBlock + i);
      }
    }
  }

  template <int kRows, int kVectors>
  HWY_INLINE void ScoreDotVectors(int64_t row, const float* k, float* scores) {
    const float* q = q_ + row * score_width_;
    V sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::Zero(d_);
    }
    for (int64_t c = 0; c < score_width_; ++c) {
      V key[kVectors];
      for (int i = 0; i < kVectors; ++i) key[i] = hn::LoadU(d_, k + c * kKeyBlock + i * kLanes);
      if constexpr (kPrefetches && kRows == 1) {
        PrefetchNext<kVectors * kLanes>(k + c * kKeyBlock, score_width_);
      }
      for (int r = 0; r < kRows; ++r) {
        const V query = hn::Set(d_, q[c * kRows + r]);
        for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::MulAdd(query, key[i], sum[r][i]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectors; ++i) {
        hn::StoreU(sum[r][i], d_, scores + r * kKeyGroup + i * kLanes);
      }
    }
  }

  // tanh(x) = 1 - 2 / (exp(2x) + 1), so a score is the sum of w less that of 2 w / (exp(2x) + 1).
  template <int kRows>
  HWY_INLINE void ScoreAdditive(int64_t row, const float* k, int64_t blocks) {
    constexpr int kVectors = static_cast<int>(std::min<int64_t>(2, kKeyBlock / kLanes));
    const float* q = q_ + row * score_width_;
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t j = 0; j < kKeyBlock; j += kVectors * kLanes) {
        for (int r = 0; r < kRows; ++r) {
          V sum[kVectors];
          for (int i = 0; i < kVectors; ++i) sum[i] = hn::Set(d_, score_weight_sum_);
          for (int64_t c = 0; c < score_width_; ++c) {
            const float* key = k + (block * score_width_ + c) * kKeyBlock + j;
            const V query = hn::Set(d_, q[c * kRows + r]);
            const V weight = hn::Set(d_, -2.0F * score_weight_[c]);
            V e[kVectors];
            for (int i = 0; i < kVectors; ++i) {
              const V x = hn::Add(query, hn::LoadU(d_, key + i * kLanes));
              e[i] = AtMost(d_, 40.0F, hn::Add(x, x));
            }
            ExpEach<kVectors>(d_, e);
            for (int i = 0; i < kVectors; ++i) {
              sum[i] = hn::Add(sum[i], hn::Div(weight, hn::Add(e[i], hn::Set(d_, 1.0F))));
            }
          }
          float* scores = scores_ + (row + r) * kKeyGroup + block * kKeyBlock + j;
          for (int i = 0; i < kVectors; ++i) hn::StoreU(sum[i], d_, scores + i * kLanes);
        }
      }
    }
  }

  // Turns scores into weights, exactly 0 for keys from `seen` on and keys that the bias hides.
  HWY_INLINE void Weigh(int64_t row, int64_t seen, const float* bias) {
    constexpr int kVectors = static_cast<int>(kKeyGroup / kLanes);
    constexpr int kAtOnce = std::min(kVectors, 4);
    float* scores = scores_ + row * kKeyGroup;
    const V hidden = hn::Set(d_, kHiddenScore);
    V top = hidden;
    for (int i = 0; i < kVectors; ++i) {
      V x = hn::LoadU(d_, scores + i * kLanes);
      if (bias != nullptr) x = hn::Add(x, hn::LoadU(d_, bias + i * kLanes));
      if ((i + 1) * kLanes > seen) {
        const V lane = hn::Iota(d_, static_cast<float>(i * kLanes));
        x = hn::IfThenElse(hn::Lt(lane, hn::Set(d_, static_cast<float>(seen))), x, hidden);
      }
      top = hn::Max(x, top);
      hn::StoreU(x, d_, scores + i * kLanes);
    }
    const V old_max = hn::Set(d_, max_[row]);
    const V max = hn::Max(hn::MaxOfLanes(d_, top), old_max);
    const V scale = Exp(d_, hn::Sub(old_max, max));
    V den = hn::Mul(hn::LoadU(d_, den_ + row * kLanes), scale);
    for (int i = 0; i < kVectors; i += kAtOnce) {
      V x[kAtOnce];
      V p[kAtOnce];
      for (int j = 0; j < kAtOnce; ++j) {
        x[j] = hn::LoadU(d_, scores + (i + j) * kLanes);
        p[j] = hn::Sub(x[j], max);
      }
      ExpEach<kAtOnce>(d_, p);
      for (int j = 0; j < kAtOnce; ++j) {
        p[j] = hn::IfThenZeroElse(hn::Le(x[j], hidden), p[j]);
        den = hn::Add(den, p[j]);
        hn::StoreU(p[j], d_, scores + (i + j) * kLanes);
      }
    }
    hn::StoreU(den, d_, den_ + row * kLanes);
    max_[row] = hn::GetLane(max);
    scale_[row] = hn::GetLane(scale);
  }

  template <int kRows>
  HWY_INLINE void AddValues(int64_t row, int64_t from, int64_t to, const float* v, bool rescale) {
    int64_t column = 0;
    AddColumns<kRows, kRows == kTall ? 2 : 4>(d_, row, from, to, v, rescale, &column);
    AddColumns<kRows, 1>(d_, row, from, to, v, rescale, &column);
    AddColumns<kRows, 1>(hn::CappedTag<float, 4>(), row, from, to, v, rescale, &column);
    AddColumns<kRows, 1>(hn::CappedTag<float, 1>(), row, from, to, v, rescale, &column);
  }

  // Adds keys [from, to) of the step to the columns from *column on, kVectors vectors at a time
  // while they fit, and advances *column.
  template <int kRows, int kVectors, class D>
  HWY_INLINE void AddColumns(D d, int64_t row, int64_t from, int64_t to, const float* v,
                             bool rescale, int64_t* column) {
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t width = value_width_;
    const float* weights = scores_ + row * kKeyGroup;
    for (; *column + kVectors * lanes <= width; *column += kVectors * lanes) {
      float* acc = acc_ + row * width + *column;
      hn::Vec<D> sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVectors; ++i) {
          sum[r][i] = hn::LoadU(d, acc + r * width + i * lanes);
          if (rescale) sum[r][i] = hn::Mul(sum[r][i], hn::Set(d, scale_[row + r]));
        }
      }
      const float* values = v + from * width + *column;
      for (int64_t j = from; j < to; ++j, values += width) {
        hn::Vec<D> value[kVectors];
        for (int i = 0; i < kVectors; ++i) value[i] = hn::LoadU(d, values + i * lanes);
        if constexpr (kPrefetches && kRows == 1 && kVectors == 4) {
          PrefetchNext<kVectors * kLanes>(values, width);
        }
        for (int r = 0; r < kRows; ++r) {
          const hn::Vec<D> p = hn::Set(d, weights[r * kKeyGroup + j]);
          for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::MulAdd(p, value[i], sum[r][i]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVectors; ++i) hn::StoreU(sum[r][i], d, acc + r * width + i * lanes);
      }
    }
  }

  const Tag d_;
  const Score score_;
  const int64_t score_width_;
  const int64_t value_width_;
  const float* const score_weight_;
  float score_weight_sum_ = 0.0F;
  int64_t rows_ = 0;
  float* const scores_;  // [rows, 64]: scores, then weights
  float* const den_;     // [rows, kLanes]
  float* const q_;       // per group of r queries [score_width, r]
  float* const acc_;     // [rows, value_width]
  float* const max_;     // [rows]
  float* const scale_;   // [rows]: e of the current step
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
