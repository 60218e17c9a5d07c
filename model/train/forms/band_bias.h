#ifndef AFT_MODEL_TRAIN_FORMS_BAND_BIAS_H_
#define AFT_MODEL_TRAIN_FORMS_BAND_BIAS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// The position biases of AFT-local and AFT-full as the differentiable forms use them. A bias is
// -inf where a row does not see a key.

// Biases of L rows over the C keys before them and their own L: 0 outside the window, -inf in the
// future. rows [R, L, s], undefined when window is 0 -> [R or 1, L, C + L].
at::Tensor CausalBandBias(const at::Tensor& rows, int64_t window, int64_t context, int64_t length,
                          const at::TensorOptions& options);

// AFT-local's table in any form as a band for `tokens` tokens: [1 or tokens, s or 2s - 1], the
// length policy applied; undefined when the window is 0.
at::Tensor LocalBand(const MixerConfig& config, const MixerTables& tables, int64_t tokens);

// w [T, T] of AFT-full or bidirectional AFT-local for T tokens, the length policy applied.
at::Tensor DenseBias(const MixerConfig& config, const MixerTables& tables, int64_t tokens);

}  // namespace aft

#endif  // AFT_MODEL_TRAIN_FORMS_BAND_BIAS_H_
