#pragma once

#include <cstdint>

#include "model/kernels/conv/conv.h"  // the formula, ConvStateLayout
#include "model/kernels/cuda/types.h"

// AFT-conv with the gate, on the GPU: causal 1-D with state, bidirectional 1-D and 2-D without. The
// formulas and the state's layout are those of model/kernels/conv/conv.h; packed
// [N, 2 * hid + h] holds queries [hid], keys [h], values [hid].
namespace aft::kernels::cuda {

// The constants of one layer.
struct ConvModel {
  int64_t hid = 0;
  int64_t heads = 1;  // h; divides hid
  int64_t taps = 1;   // s; odd when not causal
  bool causal = true;
  bool grid = false;              // the filter is s x s on images; not causal
  const float* filter = nullptr;  // w [s, h]; with grid [s * s, h]. causal: row = t - t', otherwise
                                  // row 0 is the earliest key
  bool wide = false;              // some |w| is above kNarrowBias
  Number ring = Number::kFp32;

  ConvStateLayout layout() const {
    ConvParams params;
    params.hid = hid;
    params.heads = heads;
    params.taps = taps;
    params.ring = ring;
    return ConvStateLayout(params);
  }
};

// Computes one token of each row and advances the state in place. y [rows, hid].
int ConvStep(const ConvModel& model, const StepRows& rows, In packed, State state, Out y,
             Stream stream);

// The workspace of prompt chunks, or of texts.
int64_t ConvWorkspaceFloats(const ConvModel& model, int64_t rows, int64_t tokens);

// Computes prompt chunks of any length. A token's result does not depend on the other rows.
int ConvPrefill(const ConvModel& model, const ChunkRows& chunks, In packed, State state, Out y,
                float* workspace, Stream stream);

// Computes whole texts, causal or not. An image may have at most ConvMaxGridWidth columns on the
// current device, because a block keeps the keys of all image rows that its tokens reach. A maximum
// of 0 means that the filter alone is too large.
int64_t ConvMaxGridWidth(const ConvModel& model);
int ConvEncode(const ConvModel& model, const Texts& texts, In packed, Out y, float* workspace,
               Stream stream);

}  // namespace aft::kernels::cuda
