// The recurrence of aft.cc, in two parts (README.md). Keys are per head, so a token's weights are
// computed once per head, for all taps together, and written into a table:
//
//   rows 0, 1         weights exp(x), x = (K - M) + w, of the prefix sums and of the token itself
//   rows 2 .. s       weights of the ring's tokens, in their order in memory
//   Den, Keep, Add    denominator; factors with which the token that retires enters the prefix
//
// Then the channels pass over the table, kConvTile of them at a time. If a head is wider than a
// tile, a prompt goes through the two parts in blocks of kConvBlock tokens, so that a tile of the
// ring stays in the first-level cache.

#include "model/kernels/conv/conv.h"

#include <algorithm>
#include <cstdint>

#include "model/kernels/conv/conv_channels-inl.h"
#include "model/kernels/conv/conv_heads-inl.h"
#include "model/kernels/conv/conv_row.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// One row and unit.
template <class Ring>
class ConvUnit {
 public:
  ConvUnit(const ConvParams& params, const ConvScratch& layout, const float* filter,
           const ConvRow& row, const ConvRings<Ring>& rings, float* scratch)
      : params_(params),
        layout_(layout),
        row_(row),
        rings_(rings),
        channels_(row.heads * params.head_width()),
        packed_(scratch + layout.VRing()),
        tables_(scratch + layout.Tables()),
        heads_(params, layout, filter, row, rings, scratch) {}

  HWY_INLINE void Run() {
    // A prompt reads the ring repeatedly. It reads a packed copy in fp32, because rows that are a
    // power of two apart would fall into few cache sets.
    const bool pack = row_.length >= kConvPackFrom && layout_.rows > 0;
    const int64_t end = row_.position + row_.length;
    if (pack) {
      EachPacked(std::max<int64_t>(row_.position - layout_.rows, 0), row_.position,
                 [](Ring* ring, float* packed, int64_t n) { ConvCopy(ring, packed, n); });
    }
    for (int64_t i = 0; i < row_.length; i += layout_.block) {
      RunBlock(i, std::min(i + layout_.block, row_.length), pack);
    }
    heads_.Finish();
    if (pack) {
      EachPacked(std::max(end - layout_.rows, row_.position), end,
                 [](Ring* ring, const float* packed, int64_t n) { ConvCopy(packed, ring, n); });
    }
  }

 private:
  // Calls fn(row of the ring, packed row, channels) for every tile of the tokens [begin, end).
  template <class Fn>
  HWY_INLINE void EachPacked(int64_t begin, int64_t end, const Fn& fn) const {
    for (int64_t c = 0; c < channels_; c += kConvTile) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t r = t % layout_.rows;
        fn(rings_.v + r * params_.hid + c, packed_ + c * layout_.rows + r * kConvTile,
           std::min(kConvTile, channels_ - c));
      }
    }
  }

  HWY_INLINE void RunBlock(int64_t begin, int64_t end, bool pack) {
    for (int64_t i = begin; i < end; ++i) {
      heads_.Step(i, tables_ + (i - begin) * layout_.TableFloats());
    }
    for (int64_t c = 0; c < channels_; c += kConvTile) {
      if (pack) {
        RunTile(begin, end, c, packed_ + c * layout_.rows, kConvTile, 0);
      } else {
        const bool last = c + kConvTile >= channels_;
        const int64_t next = last ? rings_.next_v - c : kConvTile;
        RunTile(begin, end, c, rings_.v + c, params_.hid, rings_.next_v == 0 ? 0 : next);
      }
    }
  }

  // `ring` is at channel c.
  template <class T>
  HWY_INLINE void RunTile(int64_t begin, int64_t end, int64_t c, T* ring, int64_t stride,
                          int64_t next) const {
    // A tile of four vectors keeps four independent chains in flight; narrower tiles cover the
    // rest. A channel's result does not depend on the width of its tile.
    int64_t from = 0;
    const hn::ScalableTag<float> d;
    RunVectors<4>(d, begin, end, c, ring, stride, next, &from);
    RunVectors<1>(d, begin, end, c, ring, stride, next, &from);
    RunVectors<1>(hn::CappedTag<float, 4>(), begin, end, c, ring, stride, next, &from);
    RunVectors<1>(hn::CappedTag<float, 1>(), begin, end, c, ring, stride, next, &from);
  }

  template <int kVectors, class D, class T>
  HWY_INLINE void RunVectors(D d, int64_t begin, int64_t end, int64_t c, T* ring, int64_t stride,
                             int64_t next, int64_t* from) const {
    const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(d));
    const int64_t tile = std::min(kConvTile, channels_ - c);
    for (; *from + width <= tile; *from += width) {
      const int64_t first = c + *from;
      const int64_t last = first + width - 1;
      if (first / params_.head_width() == last / params_.head_width()) {
        ConvChannels<kVectors, ConvSpreadOne<kVectors, D>, D, T>(d, params_, layout_, row_, first,
                                                                 ring + *from, stride, next)
            .Run(begin, end, tables_);
      } else {
        ConvChannels<kVectors, ConvSpread<kVectors, D>, D, T>(d, params_, layout_, row_, first,
                                                              ring + *from, stride, next)
            .Run(begin, end, tables_);
      }
    }
  }

  const ConvParams& params_;
  const ConvScratch& layout_;
  const ConvRow& row_;
  const ConvRings<Ring>& rings_;
  const int64_t channels_;
  float* packed_;  // [tiles][s - 1][kConvTile]
  float* tables_;
  ConvHeads<Ring> heads_;
};

template <class Ring>
HWY_INLINE void ConvRunUnits(const ConvParams& params, const RaggedBatch& batch,
                             const float* packed, int64_t packed_stride, const float* mask,
                             float* state, int64_t slot_stride, float* y, int64_t y_stride,
                             float* scratch, int64_t begin, int64_t end) {
  const ConvScratch layout(params);
  const ConvStateLayout slot(params);
  const int64_t width = params.head_width();
  const int64_t per_row = ConvUnits(params.hid, params.heads, 1);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t r = unit / per_row;
    const int64_t head = unit % per_row * layout.heads;
    const int64_t heads = std::min(layout.heads, params.heads - head);
    const int64_t token = batch.offset[r];
    const int64_t length = batch.offset[r + 1] - token;
    float* out = y + token * y_stride + head * width;
    if (batch.slot[r] < 0) {
      for (int64_t i = 0; i < length; ++i) std::fill_n(out + i * y_stride, heads * width, 0.0F);
      continue;
    }
    const float* in = packed + token * packed_stride;
    float* base = state + batch.slot[r] * slot_stride;
    const ConvRow row = {in + head * width,
                         in + params.hid + head,
                         in + params.hid + params.heads + head * width,
                         packed_stride,
                         mask == nullptr ? nullptr : mask + token,
                         out,
                         y_stride,
                         base + head * width,
                         base + params.hid + head,
                         base + params.hid + params.heads + head,
                         batch.position[r],
                         length,
                         heads};
    ConvRings<Ring> rings = {reinterpret_cast<Ring*>(base + slot.KRing()) + head,
                             reinterpret_cast<Ring*>(base + slot.VRing()) + head * width, 0, 0};
    if (length == 1 && unit + 1 < end) {
      constexpr auto kPerFloat = static_cast<int64_t>(sizeof(float) / sizeof(Ring));
      const int32_t next_slot = std::max(batch.slot[(unit + 1) / per_row], 0);
      const int64_t slots = (next_slot - batch.slot[r]) * slot_stride * kPerFloat;
      const int64_t ahead = (unit + 1) % per_row * layout.heads - head;
      rings.next_k = slots + ahead;
      rings.next_v = slots + ahead * width;
    }
    ConvUnit<Ring>(params, layout, params.filter + head, row, rings, scratch).Run();
  }
}

void ConvForwardImpl(const ConvParams& params, const RaggedBatch& batch, const float* packed,
                     int64_t packed_stride, const float* mask, float* state, int64_t slot_stride,
                     float* y, int64_t y_stride, float* scratch, int64_t begin, int64_t end) {
  const auto run = params.ring == Number::kBf16 ? ConvRunUnits<uint16_t> : ConvRunUnits<float>;
  run(params, batch, packed, packed_stride, mask, state, slot_stride, y, y_stride, scratch, begin,
      end);
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(ConvForwardImpl);

int64_t ConvScratchFloats(const ConvParams& params) { return ConvScratch(params).Floats(); }

void ConvForward(const ConvParams& params, const RaggedBatch& batch, const float* packed,
                 int64_t packed_stride, const float* mask, float* state, int64_t slot_stride,
                 float* y, int64_t y_stride, float* scratch, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(ConvForwardImpl)
  (params, batch, packed, packed_stride, mask, state, slot_stride, y, y_stride, scratch, begin,
   end);
}

}  // namespace aft::kernels
#endif
