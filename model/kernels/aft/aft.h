#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/config/formats.h"
#include "model/kernels/ragged_batch.h"
#include "model/kernels/state_view.h"

namespace aft::kernels {

// AFT-simple (window 0), AFT-local and AFT-full (window T), with the gate:
//
//   y_t = sigmoid(q_t) * sum_t' exp(k_t' + w(t,t')) * v_t' / sum_t' exp(k_t' + w(t,t'))
//   w(t,t') = the bias for |t - t'| < s, else 0
//
// over t' <= t, or over all t' (bidirectional). With prefix_block H > 0, t' runs over t's own block
// of H positions and the one before it only.
// Source: arXiv 2105.14103, eq. 2, 4, 5; the recurrence ("delayed insertion") is derived in
// README.md.

// Position biases as the kernels read them; made once, at load.
struct AftBias {
  AftBias() = default;
  // band [band_rows, columns()], columns from the earliest key to the latest: t - s + 1 .. t, and
  // on to t + s - 1 when not causal. Positions from band_rows on use the last row.
  AftBias(const float* band, int64_t band_rows, int64_t s, bool only_past);

  int64_t columns() const { return std::max<int64_t>(causal ? window : 2 * window - 1, 0); }
  // Row of position t; its columns may be read from -kPadding to columns() + kPadding.
  const float* Row(int64_t t) const {
    return table.data() + std::min(t, rows - 1) * (columns() + 2 * kPadding) + kPadding;
  }

  static constexpr int64_t kPadding = 8;

  int64_t window = 0;  // s
  bool causal = true;
  // Some |w| is above kNarrowBias: exponents are then normalised a second time, after the bias.
  bool wide = false;
  int64_t rows = 1;
  std::vector<float> table;  // exp(w), or w itself when wide; rows padded with zeros
};
inline constexpr float kNarrowBias = 20.0F;

struct AftParams {
  int64_t hid = 0;  // channels
  const AftBias* bias = nullptr;
  int64_t prefix_block = 0;  // H; 0 or >= max(s, 1)
  // kBf16: keys and values are rounded to nearest even as they enter, so that those of the current
  // token are the same as when they are read from the ring. Nothing is rounded when s <= 1.
  Number ring = Number::kFp32;

  int64_t window() const { return bias->window; }
};

// One layer's state of one sequence, at 64-byte alignment; offsets in floats:
//
//   0        prefix sums n, D, m [hid] each, fp32: numerator, denominator, running maximum (empty:
//            0, 0, kEmptyMax). With H > 0 twice: those of even blocks, then those of odd blocks
//   KRing()  keys of the last s - 1 tokens [s - 1, hid], token j in row j mod (s - 1)
//   VRing()  values, the same way
struct AftStateLayout {
  int64_t hid = 0;
  int64_t window = 0;
  int64_t prefix_block = 0;
  Number ring = Number::kFp32;

  int64_t ring_rows() const { return window > 1 ? window - 1 : 0; }
  int64_t ring_floats() const {  // of one of the two; two bf16 in each
    return ring == Number::kBf16 ? (ring_rows() * hid + 1) / 2 : ring_rows() * hid;
  }
  int64_t prefixes() const { return prefix_block > 0 ? 2 : 1; }
  int64_t KRing() const { return prefixes() * 3 * hid; }
  int64_t VRing() const { return KRing() + ring_floats(); }
  int64_t Floats() const { return VRing() + ring_floats(); }
};
inline AftStateLayout AftLayout(const AftParams& params) {
  return {params.hid, params.window(), params.prefix_block, params.ring};
}
inline constexpr float kEmptyMax = -3e38F;  // finite: -inf minus -inf is NaN

// Look-ahead: one pass over the ring makes its sums for the next kAftLookahead tokens (README.md).
// They are a slot's scratch, floats per slot and layer: they follow from the state bit for bit, and
// zeros say that there are none. 0: wide biases do without, and rings so short that they are read
// as fast.
inline constexpr int64_t kAftLookahead = 8;
inline constexpr int64_t kAftScratchRows = 2 * kAftLookahead + 4;  // of hid floats
inline int64_t AftSlotScratchFloats(const AftParams& params) {
  const AftBias& bias = *params.bias;
  const int64_t least_window = params.ring == Number::kBf16 ? 40 : 16;
  const bool pays = bias.causal && !bias.wide && bias.window >= least_window;
  return pays ? kAftScratchRows * params.hid : 0;
}

// Work is cut into units of one row (sequence) and kAftTile channels.
inline constexpr int64_t kAftTile = 64;
inline int64_t AftUnits(const AftParams& params, int64_t rows) {
  return rows * ((params.hid + kAftTile - 1) / kAftTile);
}

// Floats of scratch that each thread needs; for AftEncode with sequences of up to `tokens`.
int64_t AftScratchFloats(const AftParams& params);
int64_t AftEncodeScratchFloats(const AftParams& params, int64_t tokens);
inline constexpr int64_t kAftChunkSlack = 64;  // tokens of scratch beside the window

// Computes units [begin, end) of a batch of prompt chunks and single tokens.
//
//   qkv [N, 3 * hid]  queries, keys, values side by side; rows qkv_stride floats apart
//   state             of this layer; updated. With AftSlotScratchFloats() of scratch a slot, which
//                     must be zeroed when its state changes by other means, or none
//   y [N, hid]        rows y_stride floats apart; must not overlap qkv
//   scratch           AftScratchFloats() of this thread
//
// The result of a token is the same bits however its sequence is cut into chunks, whatever else is
// in the batch, and with scratch or without. Different units may run at once on different threads.
// REQUIRES: bias->causal.
void AftForward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
                int64_t qkv_stride, StateView state, float* y, int64_t y_stride, float* scratch,
                int64_t begin, int64_t end);

// The same for whole sequences, without state. scratch: AftEncodeScratchFloats() of this thread.
// AftEncode takes either kind of bias; AftEncodeCausal, a part of it, gives the bits of AftForward.
void AftEncode(const AftParams& params, const SequenceBatch& batch, const float* qkv,
               int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
               int64_t end);

void AftEncodeCausal(const AftParams& params, const SequenceBatch& batch, const float* qkv,
                     int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                     int64_t end);
int64_t AftEncodeCausalScratchFloats(const AftParams& params);

}  // namespace aft::kernels
