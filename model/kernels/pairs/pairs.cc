#include "model/kernels/pairs/pairs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/kernels/exp-inl.h"
#include "model/kernels/linear/bf16-inl.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

template <bool kRounds, class D>
HWY_INLINE hn::Vec<D> LoadKey(D d, const float* x) {
  const hn::Vec<D> v = hn::LoadU(d, x);
  if constexpr (kRounds) return RoundToBf16(d, v);
  return v;
}

// Computes kCount vectors of channels.
template <bool kRounds, int kCount, class D>
HWY_INLINE void PairAftVectors(D d, const float* k, const float* v, int64_t stride,
                               const SeenKeys& seen, float* y) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V max[kCount];
  V rise[kCount];
  V sum[kCount];
  V mean[kCount];
  for (int c = 0; c < kCount; ++c) {
    max[c] = rise[c] = hn::Set(d, kLowest);
    sum[c] = mean[c] = hn::Zero(d);
  }
  for (int64_t i = 0; i < seen.count; ++i) {
    const float* const key = k + seen.rows[i] * stride;
    for (int c = 0; c < kCount; ++c) max[c] = hn::Max(max[c], LoadKey<kRounds>(d, key + c * lanes));
  }
  const auto exponent = [&](int64_t i, int c) HWY_ATTR {
    const float* const key = k + seen.rows[i] * stride;
    return hn::Add(hn::Sub(LoadKey<kRounds>(d, key + c * lanes), max[c]),
                   hn::Set(d, seen.biases[i]));
  };
  for (int64_t i = 0; i < seen.count; ++i) {
    for (int c = 0; c < kCount; ++c) rise[c] = hn::Max(rise[c], exponent(i, c));
  }
  for (int64_t i = 0; i < seen.count; ++i) {
    const float* const value = v + seen.rows[i] * stride;
    V e[kCount];
    for (int c = 0; c < kCount; ++c) e[c] = hn::Sub(exponent(i, c), rise[c]);
    ExpEach<kCount>(d, e);
    for (int c = 0; c < kCount; ++c) {
      sum[c] = hn::Add(sum[c], e[c]);
      mean[c] = hn::MulAdd(e[c], LoadKey<kRounds>(d, value + c * lanes), mean[c]);
    }
  }
  for (int c = 0; c < kCount; ++c) hn::StoreU(hn::Div(mean[c], sum[c]), d, y + c * lanes);
}

template <bool kRounds>
void PairAftRow(const float* k, const float* v, int64_t stride, int64_t hid, const SeenKeys& seen,
                float* y) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + 4 * lanes <= hid; c += 4 * lanes) {
    PairAftVectors<kRounds, 4>(d, k + c, v + c, stride, seen, y + c);
  }
  for (; c + lanes <= hid; c += lanes) {
    PairAftVectors<kRounds, 1>(d, k + c, v + c, stride, seen, y + c);
  }
  for (; c < hid; ++c) PairAftVectors<kRounds, 1>(one, k + c, v + c, stride, seen, y + c);
}

void PairAftImpl(const float* k, const float* v, int64_t stride, int64_t hid, Number ring,
                 const SeenKeys& seen, float* y) {
  (ring == Number::kBf16 ? PairAftRow<true> : PairAftRow<false>)(k, v, stride, hid, seen, y);
}

void PairGateImpl(const float* q, int64_t hid, float* y) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + lanes <= hid; c += lanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, y + c), OnePlusExpNeg(d, hn::LoadU(d, q + c))), d, y + c);
  }
  for (; c < hid; ++c) {
    hn::StoreU(hn::Div(hn::LoadU(one, y + c), OnePlusExpNeg(one, hn::LoadU(one, q + c))), one,
               y + c);
  }
}

// sum_i (x_i p) (y_i r).
HWY_INLINE float ScaledDot(const float* x, float p, const float* y, float r, int64_t width) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto of_x = hn::Set(d, p);
  const auto of_y = hn::Set(d, r);
  auto sums = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    sums = hn::MulAdd(hn::Mul(hn::LoadU(d, x + i), of_x), hn::Mul(hn::LoadU(d, y + i), of_y), sums);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < width; ++i) sum += (x[i] * p) * (y[i] * r);
  return sum;
}

// w tanh(q + k), with tanh(x) = 1 - 2 / (exp(2x) + 1).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V WeightedTanh(D d, const float* w, const float* q, const float* k) {
  const V x = hn::Add(hn::LoadU(d, q), hn::LoadU(d, k));
  const V e = Exp(d, AtMost(d, 40.0F, hn::Add(x, x)));
  const V tanh = hn::Sub(hn::Set(d, 1.0F), hn::Div(hn::Set(d, 2.0F), hn::Add(e, hn::Set(d, 1.0F))));
  return hn::Mul(hn::LoadU(d, w), tanh);
}

HWY_INLINE float AdditiveScore(const float* w, const float* q, const float* k, int64_t width) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sums = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    sums = hn::Add(sums, WeightedTanh(d, w + i, q + i, k + i));
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < width; ++i) sum += hn::GetLane(WeightedTanh(one, w + i, q + i, k + i));
  return sum;
}

// 1 / |x|. In float64 nothing overflows. Eight sums let the compiler use vectors.
HWY_INLINE float PairInverseLength(const float* x, int64_t width) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= width; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += double{x[i + j]} * double{x[i + j]};
  }
  double sum = 0;
  for (; i < width; ++i) sum += double{x[i]} * double{x[i]};
  for (const double part : sums) sum += part;
  return static_cast<float>(1.0 / std::max(std::sqrt(sum), kShortestLength));
}

void PairScoresImpl(const AttentionParams& params, int64_t head, const float* query,
                    const float* keys, int64_t stride, const SeenKeys& seen, float* scores) {
  const int64_t width = params.score_width;
  const float* const q = query + head * width;
  const float* const k = keys + params.KeyColumn() + head * width;
  float strength = 1.0F;
  if (params.score == Score::kCosine) {
    const float b = query[params.StrengthColumn() + head];
    strength = std::max(b, 0.0F) + std::log1p(std::exp(-std::abs(b)));  // softplus
    strength *= PairInverseLength(q, width);
  }
  float positions[kKeyBlock];  // products of the query with the keys of a block
  int64_t block = -1;
  for (int64_t i = 0; i < seen.count; ++i) {
    const int64_t row = seen.rows[i];
    float score = 0;
    if (!params.stores_keys()) {
      if (row / kKeyBlock != block) {
        block = row / kKeyBlock;
        const float* const block_keys = params.position_keys + block * kKeyBlock * width;
        std::fill_n(positions, kKeyBlock, 0.0F);
        for (int64_t c = 0; c < width; ++c) {
          for (int64_t j = 0; j < kKeyBlock; ++j) {
            positions[j] += q[c] * block_keys[c * kKeyBlock + j];
          }
        }
      }
      score = params.scale * positions[row % kKeyBlock];
    } else if (params.score == Score::kDot) {
      score = params.scale * ScaledDot(q, 1.0F, k + row * stride, 1.0F, width);
    } else if (params.score == Score::kCosine) {
      const float* const key = k + row * stride;
      score = ScaledDot(q, strength, key, PairInverseLength(key, width), width);
    } else {
      score = AdditiveScore(params.score_weight + head * width, q, k + row * stride, width);
    }
    scores[i] = score + seen.biases[i];
  }
}

template <bool kRounds, class D>
HWY_INLINE void PairMeanVector(D d, const float* v, int64_t stride, const SeenKeys& seen,
                               const float* weights, float sum, float* y) {
  auto mean = hn::Zero(d);
  for (int64_t i = 0; i < seen.count; ++i) {
    mean = hn::MulAdd(hn::Set(d, weights[i]), LoadKey<kRounds>(d, v + seen.rows[i] * stride), mean);
  }
  hn::StoreU(hn::Div(mean, hn::Set(d, sum)), d, y);
}

template <bool kRounds>
void PairMeanRow(const float* v, int64_t stride, int64_t width, const SeenKeys& seen, float* scores,
                 float* y) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float max = kLowest;
  for (int64_t i = 0; i < seen.count; ++i) max = std::max(max, scores[i]);
  int64_t i = 0;
  for (; i + lanes <= seen.count; i += lanes) {
    hn::StoreU(Exp(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, max))), d, scores + i);
  }
  for (; i < seen.count; ++i) scores[i] = hn::GetLane(Exp(one, hn::Set(one, scores[i] - max)));
  float sum = 0;
  for (i = 0; i < seen.count; ++i) sum += scores[i];
  int64_t c = 0;
  for (; c + lanes <= width; c += lanes) {
    PairMeanVector<kRounds>(d, v + c, stride, seen, scores, sum, y + c);
  }
  for (; c < width; ++c) PairMeanVector<kRounds>(one, v + c, stride, seen, scores, sum, y + c);
}

void PairMeanImpl(const float* v, int64_t stride, int64_t width, Number ring, const SeenKeys& seen,
                  float* scores, float* y) {
  (ring == Number::kBf16 ? PairMeanRow<true> : PairMeanRow<false>)(v, stride, width, seen, scores,
                                                                   y);
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(PairAftImpl);
AFT_EXPORT(PairGateImpl);
AFT_EXPORT(PairScoresImpl);
AFT_EXPORT(PairMeanImpl);

void PairAft(const float* k, const float* v, int64_t stride, int64_t hid, Number ring,
             const SeenKeys& seen, float* y) {
  HWY_DYNAMIC_DISPATCH(PairAftImpl)(k, v, stride, hid, ring, seen, y);
}

void PairGate(const float* q, int64_t hid, float* y) {
  HWY_DYNAMIC_DISPATCH(PairGateImpl)(q, hid, y);
}

void PairScores(const AttentionParams& params, int64_t head, const float* query, const float* keys,
                int64_t stride, const SeenKeys& seen, float* scores) {
  HWY_DYNAMIC_DISPATCH(PairScoresImpl)(params, head, query, keys, stride, seen, scores);
}

void PairMean(const float* v, int64_t stride, int64_t width, Number ring, const SeenKeys& seen,
              float* scores, float* y) {
  HWY_DYNAMIC_DISPATCH(PairMeanImpl)(v, stride, width, ring, seen, scores, y);
}

}  // namespace aft::kernels
#endif
