#ifndef AFT_MODEL_KERNELS_CONV_ENCODE_H_
#define AFT_MODEL_KERNELS_CONV_ENCODE_H_

#include <cstdint>

#include "model/kernels/ragged_batch.h"

namespace aft::kernels {

// Bidirectional AFT-conv of whole sequences, 1-D or 2-D, "same": the filter is centred on the query
// and tokens that are not there contribute nothing. With i the head of channel c:
//
//   y_t = sigmoid(q_t) * sum_t' exp(k_t'[i] + w(t, t')[i]) * v_t' / sum_t' exp(k_t'[i] + w(..)[i])
//
// over all t', w = 0 outside the filter's reach. Source: arXiv 2105.14103, eq. 6; how the sums are
// taken is explained in conv_encode.cc.
struct ConvEncodeParams {
  int64_t hid = 0;
  int64_t heads = 1;  // h; divides hid
  int64_t taps = 1;   // s, odd
  bool grid = false;  // the filter is s x s and sequences are images of batch.grid_width columns
  // Per tap (row by row), a row of h numbers; and kConvPad (conv.h) more floats behind the last.
  const float* bias = nullptr;     // w
  const float* weight = nullptr;   // exp(w - rise), rise = the head's largest w, or 0 if that is
                                   // negative; what would be below FLT_MIN is 0
  const float* outside = nullptr;  // [h]: exp(-rise), the weight beyond the filter's reach
};

// Floats of scratch that each thread needs for sequences of up to `tokens`.
int64_t ConvEncodeScratchFloats(const ConvEncodeParams& params, int64_t tokens);

// Computes units [begin, end) of ConvUnits(hid, heads, batch.sequences), see conv.h.
//
//   packed [N, 2 * hid + h]  queries [hid], keys [h], values [hid]; rows packed_stride floats apart
//   y [N, hid]               rows y_stride floats apart; must not overlap packed
//   scratch                  ConvEncodeScratchFloats() of this thread
//
// A sequence's results are the same bits whatever else is in the batch. Different units may run at
// once on different threads.
void ConvEncode(const ConvEncodeParams& params, const SequenceBatch& batch, const float* packed,
                int64_t packed_stride, float* y, int64_t y_stride, float* scratch, int64_t begin,
                int64_t end);

}  // namespace aft::kernels

#endif  // AFT_MODEL_KERNELS_CONV_ENCODE_H_
