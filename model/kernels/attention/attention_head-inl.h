// One head of one sequence, compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/kernels/attention/attention.h"
#include "model/kernels/attention/attention_tile-inl.h"
#include "model/kernels/attention/attention_tile.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// Keys and values of one head of one sequence. Span i, of `span` tokens, is in place i mod spans.
struct HeadKeys {
  float* k;
  float* v;
  const float* bias;  // by position, or null
  int64_t span;
  int64_t spans;
  float* first_k;  // token 0 where the spans do not keep it, else null
  float* first_v;
};

// 1 / |x|. In float64 nothing overflows. Eight sums let the compiler use vectors.
inline float InverseLength(const float* x, int64_t width) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= width; i += 8) {
    for (int64_t j = 0; j < 8; ++j) {
      const double value = x[i + j];
      sums[j] += value * value;
    }
  }
  double sum = 0;
  for (; i < width; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (const double part : sums) sum += part;
  return static_cast<float>(1.0 / std::max(std::sqrt(sum), kShortestLength));
}

inline float Softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))); }

// One head of one sequence. Token t of the sequence is row t - first_position of `packed` and `y`.
class AttentionHead {
 public:
  AttentionHead(const AttentionParams& params, int64_t head, const HeadKeys& keys,
                int64_t first_position, const float* packed, int64_t packed_stride, float* y,
                int64_t y_stride, float* scratch)
      : p_(params),
        head_(head),
        keys_(keys),
        first_position_(first_position),
        packed_(packed),
        packed_stride_(packed_stride),
        y_(y + head * params.value_width),
        y_stride_(y_stride),
        first_block_(scratch),
        tile_(params,
              params.score_weight == nullptr ? nullptr
                                             : params.score_weight + head * params.score_width,
              kTileRows, scratch + kKeyBlock * params.score_width) {}

  // Stores token t's key and value, or zeros when the bias hides the token, so that not even NaN
  // reaches an output.
  void Put(int64_t t) {
    const bool hidden = keys_.bias != nullptr && keys_.bias[t] <= kMaskedBelow;
    const int64_t at = t % keys_.span;
    const float* v = Packed(t) + p_.ValueColumn() + head_ * p_.value_width;
    float* to_v = Values(t / keys_.span) + at * p_.value_width;
    for (int64_t c = 0; c < p_.value_width; ++c) to_v[c] = hidden ? 0.0F : v[c];
    if (t == 0 && keys_.first_v != nullptr) std::copy_n(v, p_.value_width, keys_.first_v);
    if (!p_.stores_keys()) return;
    const float* k = Packed(t) + p_.KeyColumn() + head_ * p_.score_width;
    const float factor = p_.score == Score::kCosine ? InverseLength(k, p_.score_width) : 1.0F;
    float* to_k =
        Keys(t / keys_.span) + at / kKeyBlock * kKeyBlock * p_.score_width + at % kKeyBlock;
    for (int64_t c = 0; c < p_.score_width; ++c) {
      to_k[c * kKeyBlock] = hidden ? 0.0F : k[c] * factor;
    }
    if (t == 0 && keys_.first_k != nullptr) std::copy_n(k, p_.score_width, keys_.first_k);
  }

  // Computes the outputs of tokens [begin, end), all in one span, of a sequence of `tokens` tokens
  // so far. They see stored tokens: when `local` those of their own span and its neighbours, else
  // all; when causal none after themselves.
  void Attend(int64_t begin, int64_t end, bool local, int64_t tokens) {
    StartTile(begin, end);
    const int64_t own = begin / keys_.span;
    const int64_t first = local ? std::max<int64_t>(own - 1, 0) : 0;
    const int64_t furthest = p_.causal ? own : (tokens - 1) / keys_.span;
    const int64_t last = local ? std::min(own + 1, furthest) : furthest;
    if (first > 0 && p_.global_token) AddFirst();
    for (int64_t span = first; span <= last; ++span) {
      if (p_.causal && span == own) {
        tile_.Add(Range(own, begin - own * keys_.span + 1, 1));
      } else {
        tile_.Add(Range(span, std::min(keys_.span, tokens - span * keys_.span), 0));
      }
    }
    tile_.Finish(y_ + (begin - first_position_) * y_stride_, y_stride_);
  }

  // The end of the tile that begins with token t: at the end of a span, or after kTileRows tokens.
  int64_t TileEnd(int64_t t, int64_t end) const {
    return std::min({end, t + kTileRows, (t / keys_.span + 1) * keys_.span});
  }

 private:
  const float* Packed(int64_t t) const { return packed_ + (t - first_position_) * packed_stride_; }
  float* Keys(int64_t span) const {
    return keys_.k + span % keys_.spans * RoundUpToKeyBlock(keys_.span) * p_.score_width;
  }
  float* Values(int64_t span) const {
    return keys_.v + span % keys_.spans * keys_.span * p_.value_width;
  }
  KeyRange Range(int64_t span, int64_t seen, int64_t step) const {
    return {Keys(span), Values(span),
            keys_.bias == nullptr ? nullptr : keys_.bias + span * keys_.span, seen, step};
  }

  void StartTile(int64_t begin, int64_t end) {
    const float* q = Packed(begin) + head_ * p_.score_width;
    float factor[kTileRows];
    for (int64_t r = 0; r < end - begin; ++r) {
      factor[r] = p_.score == Score::kDot ? p_.scale : 1.0F;
      if (p_.score == Score::kCosine) {
        const float strength = Packed(begin + r)[p_.StrengthColumn() + head_];
        factor[r] = Softplus(strength) * InverseLength(q + r * packed_stride_, p_.score_width);
      }
    }
    tile_.Start(end - begin, q, packed_stride_, factor);
  }

  void AddFirst() {
    if (keys_.first_k == nullptr) {  // still in its span
      tile_.Add(Range(0, 1, 0));
      return;
    }
    std::fill_n(first_block_, kKeyBlock * p_.score_width, 0.0F);
    for (int64_t c = 0; c < p_.score_width; ++c) first_block_[c * kKeyBlock] = keys_.first_k[c];
    tile_.Add({first_block_, keys_.first_v, nullptr, 1, 0});
  }

  const AttentionParams& p_;
  const int64_t head_;
  const HeadKeys keys_;
  const int64_t first_position_;
  const float* const packed_;
  const int64_t packed_stride_;
  float* const y_;
  const int64_t y_stride_;
  float* const first_block_;  // token 0's key as a block [score_width, 32]
  AttentionTile tile_;
};

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();
