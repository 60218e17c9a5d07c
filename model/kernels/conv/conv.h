#pragma once

#include <algorithm>
#include <cstdint>

#include "model/config/formats.h"
#include "model/kernels/ragged_batch.h"

namespace aft::kernels {

// Causal AFT-conv with the gate, for prompt chunks and single tokens. Channel c belongs to head i =
// c / (hid / heads); keys and filters are shared by the channels of a head:
//
//   y_t = sigmoid(q_t) * sum_t' exp(k_t'[i] + w(t - t')[i]) * v_t' / sum_t' exp(k_t'[i] + w(..)[i])
//
// over t' <= t, with w(j) = filter[j] for j < s, else 0. Source: arXiv 2105.14103, eq. 6, made
// causal; the recurrence is that of model/kernels/aft/aft.h.
struct ConvParams {
  int64_t hid = 0;                // channels
  int64_t heads = 1;              // h; divides hid
  int64_t taps = 1;               // s >= 1
  const float* filter = nullptr;  // [s, h], row = t - t', followed by kConvPad more floats
  // Some |w| is above kNarrowBias (aft.h). Exponents are then normalised again, after the bias was
  // added.
  bool wide_bias = false;
  // With kBf16 keys and values are rounded to bf16 before their first use, and the ring holds them
  // as bf16. So a token has the same weight when it is the current one and when it is read back.
  Number ring = Number::kFp32;

  int64_t head_width() const { return hid / heads; }
};
inline constexpr int64_t kConvPad = 16;  // lanes of the widest vector; vectors are read as a whole

// The state of one sequence in one layer, 64-byte aligned. Offsets are in floats:
//
//   0        prefix sums n [hid], D [h], m [h], fp32: numerator, denominator, running maximum
//   KRing()  keys of the last s - 1 tokens [s - 1, h], fp32 or bf16, token j in row j mod (s - 1)
//   VRing()  values [s - 1, hid], the same way
struct ConvStateLayout {
  explicit ConvStateLayout(const ConvParams& params)
      : hid(params.hid),
        heads(params.heads),
        rows(params.taps - 1),
        bf16(params.ring == Number::kBf16) {}

  int64_t KRing() const { return hid + 2 * heads; }
  int64_t VRing() const { return KRing() + RingFloats(rows * heads); }
  int64_t Floats() const { return VRing() + RingFloats(rows * hid); }

  int64_t hid;
  int64_t heads;
  int64_t rows;  // of the rings
  bool bf16;

 private:
  int64_t RingFloats(int64_t numbers) const { return bf16 ? (numbers + 1) / 2 : numbers; }
};

// Work is cut into units of one row and as many whole heads as fit into kConvTile channels, but no
// fewer than kConvPad heads (or all heads), so that they fill a vector. A unit has at most
// kConvTile heads.
inline constexpr int64_t kConvTile = 64;
inline int64_t ConvHeadsPerUnit(int64_t hid, int64_t heads) {
  return std::clamp<int64_t>(kConvTile * heads / hid, std::min(kConvPad, heads), heads);
}
inline int64_t ConvUnits(int64_t hid, int64_t heads, int64_t rows) {
  const int64_t per_unit = ConvHeadsPerUnit(hid, heads);
  return rows * ((heads + per_unit - 1) / per_unit);
}

// The floats of scratch that each thread needs.
int64_t ConvScratchFloats(const ConvParams& params);

// Computes units [begin, end).
//
//   packed [N, 2 * hid + h]  queries [hid], keys [h], values [hid]; rows packed_stride floats apart
//   mask [N] or null         SequenceBatch::mask
//   state                    first slot's state of this layer; slots are slot_stride floats apart;
//                            updated
//   y [N, hid]               rows y_stride floats apart; must not overlap packed
//   scratch                  ConvScratchFloats() of this thread
//
// The result of a token has the same bits however its sequence is cut into chunks, and whatever
// other rows are in the batch. Different units may run at the same time on different threads.
void ConvForward(const ConvParams& params, const RaggedBatch& batch, const float* packed,
                 int64_t packed_stride, const float* mask, float* state, int64_t slot_stride,
                 float* y, int64_t y_stride, float* scratch, int64_t begin, int64_t end);

// Bidirectional AFT-conv of whole sequences, 1-D or 2-D, with "same" padding: the filter is centred
// on the query, and tokens beyond the ends contribute nothing. With i the head of channel c:
//
//   y_t = sigmoid(q_t) * sum_t' exp(k_t'[i] + w(t, t')[i]) * v_t' / sum_t' exp(k_t'[i] + w(..)[i])
//
// over all t', with w = 0 outside the filter's reach. Source: arXiv 2105.14103, eq. 6;
// conv_encode.cc explains how the sums are computed.
struct ConvEncodeParams {
  int64_t hid = 0;
  int64_t heads = 1;  // h; divides hid
  int64_t taps = 1;   // s, odd
  bool grid = false;  // the filter is s x s and sequences are images of batch.grid_width columns
  // One row of h numbers per tap, taps row by row, and kConvPad more floats after the last row.
  const float* bias = nullptr;     // w
  const float* weight = nullptr;   // exp(w - rise), with rise = the head's largest w, or 0 if that
                                   // is negative; results below FLT_MIN are 0
  const float* outside = nullptr;  // [h]: exp(-rise), the weight beyond the filter's reach
};

// The floats of scratch that each thread needs for sequences of up to `tokens`.
int64_t ConvEncodeScratchFloats(const ConvEncodeParams& params, int64_t tokens);

// Computes units [begin, end) of ConvUnits(hid, heads, batch.sequences).
//
//   packed [N, 2 * hid + h]  queries [hid], keys [h], values [hid]; rows packed_stride floats apart
//   y [N, hid]               rows y_stride floats apart; must not overlap packed
//   scratch                  ConvEncodeScratchFloats() of this thread
//
// The results of a sequence have the same bits whatever other sequences are in the batch. Different
// units may run at the same time on different threads.
void ConvEncode(const ConvEncodeParams& params, const SequenceBatch& batch, const float* packed,
                int64_t packed_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                int64_t end);

}  // namespace aft::kernels
