#include "model/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/kernels/attention_tile.h"
#include "model/kernels/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// The keys and values of one head of one sequence: spans of `span` tokens, of which span i lies in
// place i mod spans.
struct HeadKeys {
  float* k;
  float* v;
  const float* bias;  // by position, or null
  int64_t span;
  int64_t spans;
  float* first_k;  // token 0 where the spans lose it, else null
  float* first_v;
};

// 1 / |x|, or 0 for a zero vector. In float64 nothing overflows.
inline float InverseLength(const float* x, int64_t width) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum == 0.0 ? 0.0F : static_cast<float>(1.0 / std::sqrt(sum));
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
              scratch + kKeyBlock * params.score_width) {}

  // Stores token t's key and value; zeros when the bias hides it, so that nothing of it passes.
  void Put(int64_t t);
  // Outputs of tokens [begin, end), all in one span, which see what is stored: own span and the one
  // before when `local`, else everything.
  void AttendCausal(int64_t begin, int64_t end, bool local);
  // The same for whole sequences of `tokens` tokens, to both sides.
  void AttendBoth(int64_t begin, int64_t end, bool local, int64_t tokens);
  // End of the tile that begins with token t: at a border of a span, or after kTileRows.
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

  void StartTile(int64_t begin, int64_t end);
  void AddFirst();
  void Finish(int64_t begin) {
    tile_.Finish(y_ + (begin - first_position_) * y_stride_, y_stride_);
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

void AttentionHead::Put(int64_t t) {
  const bool hidden = keys_.bias != nullptr && keys_.bias[t] <= kMaskedBelow;
  const int64_t at = t % keys_.span;
  const float* v = Packed(t) + p_.ValueColumn() + head_ * p_.value_width;
  float* to_v = Values(t / keys_.span) + at * p_.value_width;
  for (int64_t c = 0; c < p_.value_width; ++c) to_v[c] = hidden ? 0.0F : v[c];
  if (t == 0 && keys_.first_v != nullptr) std::copy_n(v, p_.value_width, keys_.first_v);
  if (!p_.stores_keys()) return;
  const float* k = Packed(t) + p_.KeyColumn() + head_ * p_.score_width;
  float factor = hidden ? 0.0F : 1.0F;
  if (p_.score == Score::kCosine && !hidden) factor = InverseLength(k, p_.score_width);
  float* to_k = Keys(t / keys_.span) + at / kKeyBlock * kKeyBlock * p_.score_width + at % kKeyBlock;
  for (int64_t c = 0; c < p_.score_width; ++c) {
    to_k[c * kKeyBlock] = factor == 0.0F ? 0.0F : k[c] * factor;
  }
  if (t == 0 && keys_.first_k != nullptr) std::copy_n(k, p_.score_width, keys_.first_k);
}

void AttentionHead::StartTile(int64_t begin, int64_t end) {
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

void AttentionHead::AddFirst() {
  if (keys_.first_k == nullptr) {  // still in its span
    tile_.Add(Range(0, 1, 0));
    return;
  }
  std::fill_n(first_block_, kKeyBlock * p_.score_width, 0.0F);
  for (int64_t c = 0; c < p_.score_width; ++c) first_block_[c * kKeyBlock] = keys_.first_k[c];
  tile_.Add({first_block_, keys_.first_v, nullptr, 1, 0});
}

void AttentionHead::AttendCausal(int64_t begin, int64_t end, bool local) {
  StartTile(begin, end);
  const int64_t own = begin / keys_.span;
  const int64_t first = local ? std::max<int64_t>(own - 1, 0) : 0;
  if (first > 0 && p_.global_token) AddFirst();
  for (int64_t span = first; span < own; ++span) tile_.Add(Range(span, keys_.span, 0));
  tile_.Add(Range(own, begin - own * keys_.span + 1, 1));
  Finish(begin);
}

void AttentionHead::AttendBoth(int64_t begin, int64_t end, bool local, int64_t tokens) {
  StartTile(begin, end);
  const int64_t own = begin / keys_.span;
  const int64_t first = local ? std::max<int64_t>(own - 1, 0) : 0;
  const int64_t last = (tokens - 1) / keys_.span;
  if (first > 0 && p_.global_token) AddFirst();
  for (int64_t span = first; span <= (local ? std::min(own + 1, last) : last); ++span) {
    tile_.Add(Range(span, std::min(keys_.span, tokens - span * keys_.span), 0));
  }
  Finish(begin);
}

HeadKeys StateKeys(const AttentionParams& params, int64_t head, float* slot) {
  const AttentionStateLayout layout(params);
  HeadKeys keys = {};
  // Position keys are never written: Put stores none.
  keys.k = params.stores_keys() ? slot + layout.Keys() + head * layout.KeyFloatsPerHead()
                                : const_cast<float*>(params.position_keys);
  keys.v = slot + layout.Values() + head * layout.ValueFloatsPerHead();
  keys.span = layout.span();
  keys.spans = layout.spans();
  if (layout.keeps_first()) {
    keys.first_k = slot + layout.FirstKey() + head * params.score_width;
    keys.first_v = slot + layout.FirstValue() + head * params.value_width;
  }
  return keys;
}

void AttentionForwardImpl(const AttentionParams& params, const RaggedBatch& batch,
                          const float* packed, int64_t packed_stride, float* state,
                          int64_t slot_stride, float* y, int64_t y_stride, float* scratch,
                          int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / params.heads;
    const int64_t head = unit % params.heads;
    const int64_t token = batch.offset[row];
    const int64_t tokens = batch.offset[row + 1] - token;
    float* to = y + token * y_stride;
    if (batch.slot[row] < 0) {
      for (int64_t i = 0; i < tokens; ++i) {
        std::fill_n(to + i * y_stride + head * params.value_width, params.value_width, 0.0F);
      }
      continue;
    }
    const HeadKeys keys = StateKeys(params, head, state + batch.slot[row] * slot_stride);
    const int64_t first = batch.position[row];
    AttentionHead attention(params, head, keys, first, packed + token * packed_stride,
                            packed_stride, to, y_stride, scratch);
    const bool generated = batch.generated != nullptr && batch.generated[row] != 0;
    const bool local = params.block_size > 0 && !(params.full_decode && generated);
    for (int64_t t = first; t < first + tokens;) {
      const int64_t tile_end = attention.TileEnd(t, first + tokens);
      for (int64_t i = t; i < tile_end; ++i) attention.Put(i);
      attention.AttendCausal(t, tile_end, local);
      t = tile_end;
    }
  }
}

void AttentionEncodeImpl(const AttentionParams& params, const SequenceBatch& batch,
                         const float* packed, int64_t packed_stride, float* y, int64_t y_stride,
                         float* scratch, int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t sequence = unit / params.heads;
    const int64_t head = unit % params.heads;
    const int64_t token = batch.offset[sequence];
    const int64_t tokens = batch.offset[sequence + 1] - token;
    if (tokens == 0) continue;
    HeadKeys keys = {};
    keys.span = params.block_size > 0 ? std::min(params.block_size, tokens) : tokens;
    keys.spans = (tokens + keys.span - 1) / keys.span;
    float* free = scratch + AttentionScratchFloats(params);
    keys.k = const_cast<float*>(params.position_keys);
    if (params.stores_keys()) {
      keys.k = free;
      free += keys.spans * RoundUpToKeyBlock(keys.span) * params.score_width;
    }
    keys.v = free;
    free += keys.spans * keys.span * params.value_width;
    if (batch.mask != nullptr) {
      for (int64_t i = 0; i < tokens; ++i) {
        const float mask = batch.mask[token + i];
        free[i] = mask <= kMaskedBelow ? -std::numeric_limits<float>::infinity() : mask;
      }
      keys.bias = free;
    }
    AttentionHead attention(params, head, keys, 0, packed + token * packed_stride, packed_stride,
                            y + token * y_stride, y_stride, scratch);
    for (int64_t t = 0; t < tokens; ++t) attention.Put(t);
    const bool local = params.block_size > 0;
    const bool first_sees_all = local && params.global_token && !params.causal;
    for (int64_t t = 0; t < tokens;) {
      const bool sees_all = first_sees_all && t == 0;
      const int64_t tile_end = sees_all ? 1 : attention.TileEnd(t, tokens);
      if (params.causal) {
        attention.AttendCausal(t, tile_end, local);
      } else {
        attention.AttendBoth(t, tile_end, local && !sees_all, tokens);
      }
      t = tile_end;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

HWY_EXPORT(AttentionForwardImpl);
HWY_EXPORT(AttentionEncodeImpl);

int64_t AttentionScratchFloats(const AttentionParams& params) {
  return kKeyBlock * params.score_width + AttentionTileFloats(params);
}

int64_t AttentionEncodeScratchFloats(const AttentionParams& params, int64_t tokens) {
  int64_t spans = 1;
  int64_t span = tokens;
  if (params.block_size > 0) {
    span = std::min(params.block_size, tokens);
    spans = (tokens + params.block_size - 1) / params.block_size;
  }
  const int64_t keys = params.stores_keys() ? spans * RoundUpToKeyBlock(span) : 0;
  return AttentionScratchFloats(params) + keys * params.score_width +
         spans * span * params.value_width + tokens + kKeyGroup;
}

void AttentionForward(const AttentionParams& params, const RaggedBatch& batch, const float* packed,
                      int64_t packed_stride, float* state, int64_t slot_stride, float* y,
                      int64_t y_stride, float* scratch, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AttentionForwardImpl)
  (params, batch, packed, packed_stride, state, slot_stride, y, y_stride, scratch, begin, end);
}

void AttentionEncode(const AttentionParams& params, const SequenceBatch& batch, const float* packed,
                     int64_t packed_stride, float* y, int64_t y_stride, float* scratch,
                     int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AttentionEncodeImpl)
  (params, batch, packed, packed_stride, y, y_stride, scratch, begin, end);
}

void PackKeys(const float* keys, int64_t rows, int64_t width, float* packed) {
  std::fill_n(packed, RoundUpToKeyBlock(rows) * width, 0.0F);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      packed[(i / kKeyBlock * width + c) * kKeyBlock + i % kKeyBlock] = keys[i * width + c];
    }
  }
}

}  // namespace aft::kernels
#endif
