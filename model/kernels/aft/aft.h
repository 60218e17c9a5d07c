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
// over t' <= t, or over all t' (bidirectional). With prefix_block H > 0, t' runs only over the
// block of H positions that contains t and the block before it. Source: arXiv 2105.14103, eq. 2, 4,
// 5; the recurrence ("delayed insertion") is derived in README.md.

// Position biases in the form that the kernels read. They are made once, when the model is loaded.
struct AftBias {
  AftBias() = default;
  // band [band_rows, columns()]. The columns of row t are the keys t - s + 1 .. t in this order,
  // and further ones up to t + s - 1 when not causal. Positions from band_rows on use the last row.
  AftBias(const float* band, int64_t band_rows, int64_t s, bool only_past);

  int64_t columns() const { return std::max<int64_t>(causal ? window : 2 * window - 1, 0); }
  // The row of position t. Its columns may be read from -kPadding to columns() + kPadding.
  const float* Row(int64_t t) const {
    return table.data() + std::min(t, rows - 1) * (columns() + 2 * kPadding) + kPadding;
  }

  static constexpr int64_t kPadding = 8;

  int64_t window = 0;  // s
  bool causal = true;
  // Some |w| is above kNarrowBias. Exponents are then normalised again, after the bias was added.
  bool wide = false;
  int64_t rows = 1;
  std::vector<float> table;  // exp(w), or w itself when wide; rows padded with zeros
};
inline constexpr float kNarrowBias = 20.0F;

struct AftParams {
  int64_t hid = 0;  // channels
  const AftBias* bias = nullptr;
  int64_t prefix_block = 0;  // H; 0 or >= max(s, 1)
  // kBf16: keys and values of a token are rounded to nearest even before their first use, so that
  // they are the same when the token is the current one and when they are read back from the ring.
  // Nothing is rounded when s <= 1.
  Number ring = Number::kFp32;

  int64_t window() const { return bias->window; }
};

// The state of one sequence in one layer, 64-byte aligned. Offsets are in floats:
//
//   0        prefix sums n, D, m [hid] each, fp32: numerator, denominator, running maximum (when
//            empty: 0, 0, kEmptyMax). With H > 0 there are two sets: even blocks, then odd blocks
//   KRing()  keys of the last s - 1 tokens [s - 1, hid], token j in row j mod (s - 1)
//   VRing()  values, the same way
struct AftStateLayout {
  int64_t hid = 0;
  int64_t window = 0;
  int64_t prefix_block = 0;
  Number ring = Number::kFp32;

  int64_t ring_rows() const { return window > 1 ? window - 1 : 0; }
  int64_t ring_floats() const {  // the size of one ring; a float holds two bf16
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

// Look-ahead: one pass over the ring computes its sums for the next kAftLookahead tokens
// (README.md). They are kept in the slot's scratch. They can be recomputed from the state bit for
// bit, and zeros mean that there are no sums. AftSlotScratchFloats() is the size of this scratch
// per slot and layer. It is 0, for no look-ahead, with wide biases and with rings so short that
// reading them costs no more.
inline constexpr int64_t kAftLookahead = 8;
inline constexpr int64_t kAftScratchRows = 2 * kAftLookahead + 4;  // rows of hid floats
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

// The floats of scratch that each thread needs. AftEncode's is for sequences of up to `tokens`.
int64_t AftScratchFloats(const AftParams& params);
int64_t AftEncodeScratchFloats(const AftParams& params, int64_t tokens);
inline constexpr int64_t kAftChunkSlack = 64;  // tokens of scratch in addition to the window

// Computes units [begin, end) of a batch of prompt chunks and single tokens.
//
//   qkv [N, 3 * hid]  queries, keys, values side by side; rows qkv_stride floats apart
//   state             of this layer; updated. It has AftSlotScratchFloats() of scratch per slot or
//                     no scratch. Scratch must be zeroed when its state changes by other means
//   y [N, hid]        rows y_stride floats apart; must not overlap qkv
//   scratch           AftScratchFloats() of this thread
//
// The result of a token has the same bits however its sequence is cut into chunks, whatever other
// rows are in the batch, and with scratch or without. Different units may run at the same time on
// different threads. REQUIRES: bias->causal.
void AftForward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
                int64_t qkv_stride, StateView state, float* y, int64_t y_stride, float* scratch,
                int64_t begin, int64_t end);

// AFT of whole sequences, without state. scratch: AftEncodeScratchFloats() of this thread.
// AftEncode accepts causal and bidirectional biases. It calls AftEncodeCausal for causal ones,
// whose results have the same bits as those of AftForward.
void AftEncode(const AftParams& params, const SequenceBatch& batch, const float* qkv,
               int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
               int64_t end);

void AftEncodeCausal(const AftParams& params, const SequenceBatch& batch, const float* qkv,
                     int64_t qkv_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                     int64_t end);
int64_t AftEncodeCausalScratchFloats(const AftParams& params);

}  // namespace aft::kernels
