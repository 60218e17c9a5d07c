// One step at position t (README.md):
//
//   before   the prefix sums hold the tokens <= t - s, the ring holds t - s + 1 .. t - 1
//   output   M = largest of all keys that take part, a = M rounded to a multiple of 32
//            y = [sum_j exp(w_j) (exp(K_j - a) v_j) + exp(m - a) n]
//                / [sum_j exp(w_j) exp(K_j - a) + exp(m - a) D] * sigmoid(q)
//   after    token t - s + 1 enters the prefix and token t takes its place in the ring
//
// Only positive terms are added, so nothing cancels. Wide biases use the exact two-step form
// instead: exponents x_j = (K_j - M) + w_j, then relative to the largest x_j.

#include "model/kernels/aft/aft.h"

#include <algorithm>
#include <cstdint>

#include "model/kernels/aft/aft_ahead-inl.h"
#include "model/kernels/aft/aft_chunk-inl.h"
#include "model/kernels/aft/aft_step-inl.h"
#include "model/kernels/simd.h"

namespace aft::kernels {

// The layout of a state that is one tile wide and used for one sequence at a time. Only StepTile
// reads and writes the rings.
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

// This is a function of its own because within RunTile it would cost the other forms registers.
template <int kVectors, class Ring, class D>
HWY_NOINLINE void RunAhead(D d, const AftParams& params, const Row& row, const TileState& state,
                           float* scratch) {
  AheadTile<kVectors, D, Ring>(d, params, row, state, scratch).Run();
}

// Runs one tile of one row in the form that suits it; all forms give the same bits. `kept` says
// that the state is needed afterwards.
template <int kVectors, class Ring, class D>
HWY_NOINLINE void RunTile(D d, const AftParams& params, const Row& row, const TileState& state,
                          float* scratch, bool kept) {
  if (state.ahead != nullptr) {
    if (row.length == 1) {
      RunAhead<kVectors, Ring>(d, params, row, state, scratch);
      return;
    }
    AheadTile<kVectors, D, Ring>::Forget(d, state);
  }
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
              int64_t qkv_stride, const StateView& state, float* y, int64_t y_stride,
              float* scratch, int64_t begin, int64_t end) {
  const int64_t tiles = AftUnits(params, 1);
  const AftStateLayout layout = AftLayout(params);
  const int64_t state_bytes = layout.Floats() * static_cast<int64_t>(sizeof(float));
  const int64_t ahead_floats =
      state.scratch == nullptr ? 0 : AftSlotScratchFloats(params) / params.hid;
  // Larger rings would not stay in the second cache until they are read.
  constexpr int64_t kMostFetched = 256 << 10;
  const int64_t ring_bytes = 2 * layout.ring_floats() * static_cast<int64_t>(sizeof(float));
  const int64_t sharing = ring_bytes <= kMostFetched ? kAftLookahead : 0;
  const auto row_of = [&](int64_t r, int64_t channel) {
    const int64_t token = batch.offset[r];
    return Row{qkv + token * qkv_stride + channel,
               qkv_stride,
               y + token * y_stride + channel,
               y_stride,
               nullptr,
               batch.position[r],
               batch.offset[r + 1] - token};
  };
  const auto tile_of = [&](int64_t r, int64_t channel) {
    const int64_t slot = batch.slot[r];
    float* const base = state.base + slot * state.slot_stride;
    TileState tile = {base + channel, params.hid, base + layout.KRing(), base + layout.VRing(),
                      channel};
    if (ahead_floats > 0) {
      tile.ahead = state.scratch + slot * state.scratch_stride + ahead_floats * channel;
      tile.phase = slot;
    }
    return tile;
  };
  // Whether row r is a decode step of one token and has units in this call.
  const auto decodes = [&](int64_t r) {
    return r * tiles < end && batch.slot[r] >= 0 && batch.offset[r + 1] - batch.offset[r] == 1;
  };
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t r = unit / tiles;
    const int64_t first = unit % tiles * kAftTile;
    const int64_t channel_end = std::min(first + kAftTile, params.hid);
    if (batch.slot[r] < 0) {
      for (int64_t i = batch.offset[r]; i < batch.offset[r + 1]; ++i) {
        std::fill(y + i * y_stride + first, y + i * y_stride + channel_end, 0.0F);
      }
      continue;
    }
    ForTiles(first, channel_end, [&](auto d, auto vectors, int64_t channel) HWY_ATTR {
      const Row row = row_of(r, channel);
      TileState tile = tile_of(r, channel);
      if (row.length == 1 && ahead_floats > 0) {
        using Ahead = AheadTile<decltype(vectors)::value, decltype(d), Ring>;
        if (decodes(r + 1)) {
          Ahead::Fetch(d, params, row_of(r + 1, channel), tile_of(r + 1, channel));
        }
        // The rows before one that will read its ring fetch a part of it each.
        for (int64_t a = 1; a <= sharing && decodes(r + a); ++a) {
          const TileState later = tile_of(r + a, channel);
          if (!Ahead::Begins(later, row_of(r + a, channel))) continue;
          Ahead::FetchRing(d, params, later, kAftLookahead - a);
          break;
        }
      } else if (row.length == 1 && decodes(r + 1)) {
        // Every tile fetches its share of the next row's whole state.
        const auto width = static_cast<int64_t>(hn::Lanes(d)) * vectors;
        tile.next = reinterpret_cast<const char*>(tile_of(r + 1, 0).prefix) +
                    state_bytes * channel / params.hid;
        tile.next_bytes = state_bytes * width / params.hid;
      }
      RunTile<decltype(vectors)::value, Ring>(d, params, row, tile, scratch, true);
    });
  }
}

void Forward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
             int64_t qkv_stride, const StateView& state, float* y, int64_t y_stride, float* scratch,
             int64_t begin, int64_t end) {
  const bool bf16 = params.ring == Number::kBf16;
  (bf16 ? RunUnits<Bf16Ring> : RunUnits<Fp32Ring>)(params, batch, qkv, qkv_stride, state, y,
                                                   y_stride, scratch, begin, end);
}

// The state of the current sequence is at the front of the scratch, one tile wide.
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
               const TileState tile = {scratch, kAftTile, scratch + layout.KRing(),
                                       scratch + layout.VRing()};
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
                int64_t qkv_stride, StateView state, float* y, int64_t y_stride, float* scratch,
                int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(Forward)
  (params, batch, qkv, qkv_stride, state, y, y_stride, scratch, begin, end);
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
