#ifndef AFT_MODEL_TRAIN_FORMS_AFT_LOCAL_FORM_H_
#define AFT_MODEL_TRAIN_FORMS_AFT_LOCAL_FORM_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "model/train/forms/aft_sums.h"  // kEmptyKey

namespace aft {

// What one segment leaves to the next one: truncated back-propagation carries it, detached; fp32.
// Empty places hold a key of kEmptyKey and a value of 0, so that they weigh nothing.
//   prefix_block H > 0: the last H tokens.
//   otherwise: entry 0 stands for all older tokens (the log-sum-exp of their keys, the mean of
//   their values by weight: exactly as good as they are), then the last window - 1 tokens.
struct AftCarry {
  at::Tensor k, v;  // [B, C, hid]
};

// An empty carry for `batch` sequences. Rows of it may be copied over a carry to restart a
// sequence.
AftCarry EmptyAftCarry(int64_t batch, int64_t hid, int64_t window, int64_t prefix_block);

// Causal AFT-simple (window 0) and AFT-local as a few matrix products, differentiable: the training
// form, and one of the oracles of the kernels' tests.
//
//   Y_t = sigmoid(Q_t) * sum_t' exp(K_t' + w(t,t')) * V_t' / sum_t' exp(K_t' + w(t,t'))
//
// over t' <= t, with w(t,t') = band[t or 0][t - t'] inside the window and 0 outside (arXiv
// 2105.14103, eq. 2 and 4). With prefix_block H > 0, t' is further limited to t's own block of H
// tokens and the one before it (config/config.h). Without, rows are taken in tiles, each beside
// its window, and all older tokens come in as one running sum: O(T window hid).
//
//   packed [B, T, 3*hid]  q, k, v side by side
//   band   [1, s] or [>= T, s]; undefined when window is 0. More than one row only without a carry.
//   carry  null, or the state (fp32) before this segment; replaced by the state after it. With a
//          carry and H > 0, T must be a multiple of H.
//   gemm   type of the matrix product's operands: packed's own, or bfloat16 for speed
//   mask   [B, T] or undefined: SequenceBatch::mask
//
// Numerics: see aft_sums.h. Exact for all keys and biases.
at::Tensor AftParallel(const at::Tensor& packed, const at::Tensor& band, int64_t window,
                       int64_t prefix_block, AftCarry* carry = nullptr,
                       at::ScalarType gemm = at::ScalarType::Undefined,
                       const at::Tensor& mask = {});

}  // namespace aft

#endif  // AFT_MODEL_TRAIN_FORMS_AFT_LOCAL_FORM_H_
