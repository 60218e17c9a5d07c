#pragma once

#include <cstdint>

#include "model/kernels/aft/aft.h"  // the formula, AftStateLayout
#include "model/kernels/cuda/types.h"

// AFT-simple (window 0), AFT-local and AFT-full (window T) with the gate, on the GPU. The formula
// and the state's layout are those of model/kernels/aft/aft.h; qkv [N, 3 * hid] holds queries,
// keys, values side by side.
namespace aft::kernels::cuda {

// The constants of one layer.
struct AftModel {
  int64_t hid = 0;
  int64_t window = 0;        // s
  int64_t prefix_block = 0;  // H
  Number ring = Number::kFp32;
  bool causal = true;
  // w itself [bias_rows, columns]. The columns of row t are the keys t - s + 1 .. t in this order,
  // and further ones up to t + s - 1 when not causal. Positions from bias_rows on use the last row.
  // Null when s = 0.
  const float* bias = nullptr;
  int64_t bias_rows = 1;
  bool wide = false;  // some |w| is above kNarrowBias (model/kernels/aft/aft.h)

  AftStateLayout layout() const { return {hid, window, prefix_block, ring}; }
};

// Block look-ahead decode: model/kernels/README.md. w does not depend on the query. So one pass
// over a sequence's ring at position t0 can compute the sums of the next `rows` tokens over what
// the sequence holds at t0. The steps after t0 read these sums and the few tokens since t0.
// StepRows::age[i] is position[i] - t0 when the slot's sums are valid, 0 to compute them now (t0 =
// position[i]), and -1 to work without sums, which leaves their memory unchanged. REQUIRES: age <
// rows; prefix_block = 0.
struct AftLookahead {
  int64_t rows = 0;       // R; 0: no look-ahead, and StepRows::age is not read
  float* sums = nullptr;  // [slots, slot_stride]: AftLookaheadFloats() each
  int64_t slot_stride = 0;
};
int64_t AftLookaheadFloats(const AftModel& model, int64_t rows);
// The best number of look-ahead rows for this window; 0 when the plain step is as good.
int64_t AftLookaheadRows(const AftModel& model);

// Computes one token of each row and advances the state in place. y [rows, hid]. REQUIRES: causal.
int AftStep(const AftModel& model, const StepRows& rows, In qkv, State state,
            const AftLookahead& lookahead, Out y, Stream stream);

// Computes prompt chunks of any length. A token's result does not depend on the other rows.
// REQUIRES: causal.
int64_t AftPrefillWorkspaceFloats(const AftModel& model, int64_t rows, int64_t tokens);
int AftPrefill(const AftModel& model, const ChunkRows& chunks, In qkv, State state, Out y,
               float* workspace, Stream stream);

// Computes whole texts, with either kind of bias.
int64_t AftEncodeWorkspaceFloats(const AftModel& model, int64_t sequences, int64_t tokens);
int AftEncode(const AftModel& model, const Texts& texts, In qkv, Out y, float* workspace,
              Stream stream);

}  // namespace aft::kernels::cuda
