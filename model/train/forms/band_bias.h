#ifndef AFT_MODEL_TRAIN_FORMS_BAND_BIAS_H_
#define AFT_MODEL_TRAIN_FORMS_BAND_BIAS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// The position biases of AFT-local and AFT-full as the differentiable forms use them. A band has a
// column for every key from t - s + 1 on, as AftBand has. A bias is -inf where a row does not see a
// key.

// Biases of L rows over the C keys before them and their own L: 0 outside the window, -inf in the
// future. band [R, L, s], undefined when there is none -> [R or 1, L, C + L].
at::Tensor CausalBandBias(const at::Tensor& band, int64_t context, int64_t length,
                          const at::TensorOptions& options);

// The table in any form as a band for `tokens` tokens, the length policy applied: [1 or tokens, s],
// or 2s - 1 columns when bidirectional; undefined when there are no biases.
at::Tensor BandFor(const MixerConfig& config, const MixerTables& tables, int64_t tokens);

// The same for every pair of tokens, [T, T]; undefined when every token sees all without a bias.
at::Tensor DenseBias(const MixerConfig& config, const MixerTables& tables, int64_t tokens);

}  // namespace aft

#endif  // AFT_MODEL_TRAIN_FORMS_BAND_BIAS_H_
