#ifndef AFT_MODEL_KERNELS_AFT_H_
#define AFT_MODEL_KERNELS_AFT_H_

#include <cstdint>

#include "model/kernels/ragged_batch.h"

namespace aft::kernels {

// Causal AFT-simple (window 0) and AFT-local, with the gate, for prompt chunks and single tokens
// alike:
//
//   y_t = sigmoid(q_t) * sum_t' exp(k_t' + w(t,t')) * v_t' / sum_t' exp(k_t' + w(t,t')),   t' <= t
//   w(t,t') = band[t or 0][t - t'] for t - t' < s, else 0
//
// With prefix_block H > 0, t' runs over t's own block of H positions and the one before it only.
// Source: arXiv 2105.14103, eq. 2, 4, 5; the recurrence ("delayed insertion") is explained in
// aft.cc.
struct AftParams {
  int64_t hid = 0;              // channels
  int64_t window = 0;           // s
  int64_t prefix_block = 0;     // H; 0 or >= max(s, 1)
  const float* band = nullptr;  // [band_rows, s]; null when s = 0
  int64_t band_rows = 1;        // 1: the same row at every position; else positions stay below it
  // Some |w| is above kNarrowBias: the exponents are then normalised a second time, after the bias.
  bool wide_bias = false;
};
inline constexpr float kNarrowBias = 20.0F;

// One layer's state of one sequence, fp32, at 64-byte alignment; offsets in floats:
//
//   0        prefix sums n, D, m [hid] each: numerator, denominator, running maximum (empty: 0, 0,
//            kEmptyMax). With H > 0 twice: those of even blocks, then those of odd blocks
//   KRing()  keys of the last s - 1 tokens [s - 1, hid], token j in row j mod (s - 1)
//   VRing()  values, the same way
struct AftStateLayout {
  int64_t hid = 0;
  int64_t window = 0;
  int64_t prefix_block = 0;

  int64_t ring_rows() const { return window > 1 ? window - 1 : 0; }
  int64_t prefixes() const { return prefix_block > 0 ? 2 : 1; }
  int64_t KRing() const { return prefixes() * 3 * hid; }
  int64_t VRing() const { return KRing() + ring_rows() * hid; }
  int64_t Floats() const { return VRing() + ring_rows() * hid; }
};
inline constexpr float kEmptyMax = -3e38F;  // finite: -inf minus -inf is NaN

// Work is cut into units of one row and kAftTile channels.
inline constexpr int64_t kAftTile = 64;
inline int64_t AftUnits(const AftParams& params, int64_t rows) {
  return rows * ((params.hid + kAftTile - 1) / kAftTile);
}

// Floats of scratch that each thread needs.
inline int64_t AftScratchFloats(int64_t window) {
  return window > 1 ? 2 * (window - 1) * kAftTile : 0;
}

// Computes units [begin, end).
//
//   qkv [N, 3 * hid]  queries, keys, values side by side; rows qkv_stride floats apart
//   state             first slot's state of this layer; slots are slot_stride floats apart; updated
//   y [N, hid]        rows y_stride floats apart; must not overlap qkv
//   scratch           AftScratchFloats() of this thread
//
// The result of a token is the same bits however its sequence is cut into chunks and whatever else
// is in the batch. Different units may run at once on different threads.
void AftForward(const AftParams& params, const RaggedBatch& batch, const float* qkv,
                int64_t qkv_stride, float* state, int64_t slot_stride, float* y, int64_t y_stride,
                float* scratch, int64_t begin, int64_t end);

}  // namespace aft::kernels

#endif  // AFT_MODEL_KERNELS_AFT_H_
