// One step at position t (README.md):
//
//   before   the prefix sums hold the tokens <= t - s, the ring holds t - s + 1 .. t - 1
//   output   M = max of all keys that take part, a = M rounded to a multiple of 32
//            y = [exp(m - a) n + sum_j exp(w_j) (exp(K_j - a) v_j)]
//                / [exp(m - a) D + sum_j exp(w_j) exp(K_j - a)] * sigmoid(q)
//   after    token t - s + 1 enters the prefix and token t takes its place in the ring
//
// Only positive terms are added, so nothing cancels. Wide biases take the exact two-step form
// instead: x_j = (K_j - M) + w_j, relative to their largest.

#include "model/kernels/aft.h"

#include <algorithm>
#include <cstdint>

#include "model/kernels/aft_chunk-inl.h"
#include "model/kernels/aft_step-inl.h"
#include "model/kernels/simd.h"

namespace aft::kernels {

// A state of one tile, for one sequence at a time. Only StepTile keeps rings.
inline AftStateLayout EncodeLayout(const AftParams& params) {
  return {kAftTile, params.window(), params.prefix_block, params.ring};
}
inline int64_t EncodeStateFloats(const AftParams& params) {
  const AftStateLayout layout = EncodeLayout(params);
  return params.bias->wide ? (layout.Floats() + 15) / 16 * 16 : layout.KRing();
}

}  // namespace aft::kernels
HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

// One tile of one row by the form that suits it; all give the same bits. `kept`: the state matters
// afterwards.
template <int kVectors, class Ring, class D>
HWY_NOINLINE void RunTile(D d, const AftParams& params, const Row& row, const TileState& state,
                          float* scratch, bool kept) {
  if (params.window() == 0 && params.prefix_block == 0) {
    SimpleTile<kVectors>(d, params, row, state);
  } else if (params.window() > 0 && !params.bias->wide && (row.length > 1 || !kept)) {
    ChunkTile<kVectors, D, Ring>(d, params, row, state, scratch, kept).Run();
  } else {
    StepTile<kVectors, D, Ring>(d, params, row, state).Run();
  }
}

template <class Ring>
void RunUnits(const AftParams& params, const RaggedBatch& batch, const float* qkv,
              int64_t qkv_stride, float* state, int64_t slot_stride, float* y, int64_t y_stride,
              float* scratch, int64_t begin, int64_t end) {
  const int64_t tiles = AftUnits(params, 1);
  const AftStateLayout layout = AftLayout(params);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t r = unit / tiles;
    const int64_t first = unit % tiles * kAftTile;
    const int64_t channel_end = std::min(first + kAftTile, params.hid);
    const int64_t token = batch.offset[r];
    const int64_t length = batch.offset[r + 1] - token;
    if (batch.slot[r] < 0) {
      for (int64_t i = token; i < token + length; ++i) {
        std::fill(y + i * y_stride + first, y + i * y_stride + channel_end, 0.0F);
      }
      continue;
    }
    float* slot = state + batch.slot[r] * slot_stride;
    // Decoding: all of the next row's state that is in use.
    const char* next = nullptr;
    if (length == 1 && (r + 1) * tiles < end && batch.slot[r + 1] >= 0) {
      next = reinterpret_cast<const char*>(state + batch.slot[r + 1] * slot_stride);
    }
    const int64_t state_bytes = layout.Floats() * static_cast<int64_t>(sizeof(float));
    ForTiles(first, channel_end, [&](auto d, auto vectors, int64_t channel) HWY_ATTR {
      const Row row = {qkv + token * qkv_stride + channel,
                       qkv_stride,
                       y + token * y_stride + channel,
                       y_stride,
                       nullptr,
                       batch.position[r],
                       length};
      const auto width = static_cast<int64_t>(hn::Lanes(d)) * vectors;
      const int64_t share = state_bytes * channel / params.hid;
      const TileState tile = {slot + channel,
                              params.hid,
                              slot + layout.KRing(),
                              slot + layout.VRing(),
                              channel,
                              next == nullptr ? nullptr : next + share,
                              state_bytes * width / params.hid};
      RunTile<decltype(vectors)::value, Ring>(d, params, row, tile, scratch, true);
    });
  }
}

void Forward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
             int64_t qkv_stride, float* state, int64_t slot_stride, float* y, int64_t y_stride,
             float* scratch, int64_t begin, int64_t end) {
  const bool bf16 = params.ring == Number::kBf16;
  (bf16 ? RunUnits<Bf16Ring> : RunUnits<Fp32Ring>)(params, batch, qkv, qkv_stride, state,
                                                   slot_stride, y, y_stride, scratch, begin, end);
}

// The state of the sequence at hand is at the front of the scratch, one tile wide.
void EncodeCausal(const AftParams& params, const SequenceBatch& batch, const float* qkv,
                  int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                  int64_t end) {
  const int64_t tiles = AftUnits(params, 1);
  const AftStateLayout layout = EncodeLayout(params);
  float* rest = scratch + EncodeStateFloats(params);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t sequence = unit / tiles;
    const int64_t first = unit % tiles * kAftTile;
    ForTiles(first, std::min(first + kAftTile, params.hid),
             [&](auto d, auto vectors, int64_t channel) HWY_ATTR {
               const Row row = SequenceRow(batch, sequence, channel, qkv, qkv_stride, y, y_stride);
               const TileState tile = {
                   scratch, kAftTile, scratch + layout.KRing(), scratch + layout.VRing(), 0,
                   nullptr, 0};
               if (params.ring == Number::kBf16) {
                 RunTile<decltype(vectors)::value, Bf16Ring>(d, params, row, tile, rest, false);
               } else {
                 RunTile<decltype(vectors)::value, Fp32Ring>(d, params, row, tile, rest, false);
               }
             });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(Forward);
AFT_EXPORT(EncodeCausal);

void AftForward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
                int64_t qkv_stride, float* state, int64_t slot_stride, float* y, int64_t y_stride,
                float* scratch, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(Forward)
  (params, batch, qkv, qkv_stride, state, slot_stride, y, y_stride, scratch, begin, end);
}

int64_t AftScratchFloats(const AftParams& params) {
  const AftBias& bias = *params.bias;
  if (bias.window == 0 || bias.wide) return 0;
  return 4 * kAftTile * (bias.window - 1 + kAftChunkSlack);
}

int64_t AftEncodeCausalScratchFloats(const AftParams& params) {
  return EncodeStateFloats(params) + AftScratchFloats(params);
}

void AftEncodeCausal(const AftParams& params, const SequenceBatch& batch, const float* qkv,
                     int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                     int64_t end) {
  HWY_DYNAMIC_DISPATCH(EncodeCausal)
  (params, batch, qkv, qkv_stride, y, y_stride, scratch, begin, end);
}

}  // namespace aft::kernels
#endif
