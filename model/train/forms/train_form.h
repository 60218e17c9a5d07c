#ifndef AFT_MODEL_TRAIN_FORMS_TRAIN_FORM_H_
#define AFT_MODEL_TRAIN_FORMS_TRAIN_FORM_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"
#include "model/train/forms/aft_local_form.h"  // AftCarry

namespace aft {

struct TrainFormOptions {
  // Causal AFT-simple and AFT-local: null, or the state before this segment, replaced by the state
  // after it (truncated back-propagation). Null for all others.
  AftCarry* carry = nullptr;
  // Type of the operands of large matrix products; Undefined: packed's own. bfloat16 trains faster.
  at::ScalarType gemm = at::ScalarType::Undefined;
  // [B, T] or undefined: SequenceBatch::mask.
  at::Tensor mask;
  int64_t grid_width = 0;  // SequenceBatch::grid_width
};

// Whether segments of a text can be trained with the state carried from one to the next.
bool CanCarry(const MixerConfig& config);

// The mixer as a function of whole sequences that start at position 0 (or continue `carry`), made
// of differentiable LibTorch operators: the training form, the "plain LibTorch" side of the
// benchmarks, and one of the oracles of the kernels' tests. Differentiable in packed and tables;
// works in fp32 and fp64.
//
//   packed [B, T, PackedWidth()] -> [B, T, hid]
//   tables  by name, as ExpectedMixerTables lists them, of packed's type
//
// REQUIRES: T <= band_rows when that is set, or length_policy is not kError.
at::Tensor TrainForm(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                     const TrainFormOptions& options = {});

}  // namespace aft

#endif  // AFT_MODEL_TRAIN_FORMS_TRAIN_FORM_H_
