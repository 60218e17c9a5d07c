#pragma once

#include "ATen/core/Tensor.h"
#include "model/train/forms/train_form.h"

namespace aft {

// The forms that TrainForm chooses from; arguments and result are its own. Formulas:
// model/README.md.

// Causal AFT-simple and AFT-local as a few matrix products. With prefix_block, each block beside
// the one before it. Without, rows in tiles, each beside its window, and all older tokens as one
// running sum: O(T window hid). Exact for all keys and biases; numerics: aft_sums.h.
at::Tensor AftLocalForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

// AFT with weights for every pair of tokens, O(T^2 hid): AFT-full, and the bidirectional AFT-local
// and AFT-simple.
at::Tensor AftDenseForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

// Causal: in tiles like AftLocalForm. Bidirectional and on a grid: with weights for every pair of
// tokens. Sums of positive terms only: eq. 6 as it stands, with exp(w) - 1, cancels.
at::Tensor AftConvForm(const MixerConfig& config, const at::Tensor& packed,
                       const MixerTables& tables, const TrainFormOptions& options);

// As a prompt is read: full_decode changes nothing.
at::Tensor BlockLocalForm(const MixerConfig& config, const at::Tensor& packed,
                          const TrainFormOptions& options);

at::Tensor DotProductForm(const MixerConfig& config, const at::Tensor& packed,
                          const TrainFormOptions& options);

// Vectors shorter than 1e-6 count as that long.
at::Tensor CosineForm(const MixerConfig& config, const at::Tensor& packed,
                      const TrainFormOptions& options);

// Takes T^2 heads score_width numbers at once.
at::Tensor AdditiveForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

at::Tensor LocationForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

}  // namespace aft
