#pragma once

#include "ATen/core/Tensor.h"
#include "model/train/forms/train_form.h"

namespace aft {

// The forms that TrainForm chooses from. They have its arguments and its result. model/README.md
// has the formulas.

// Causal AFT-simple and AFT-local as a few matrix products. With prefix_block, each block is
// multiplied with itself and the block before it. Without it, each tile of rows is multiplied with
// its window, and all older tokens are one running sum: O(T window hid). Exact for all keys and
// biases; see aft_sums.h for the numerics.
MixerCarry EmptyAftCarry(const MixerConfig& config, int64_t batch, int64_t hid);
at::Tensor AftLocalForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

// AFT with weights for every pair of tokens, O(T^2 hid): AFT-full, and the bidirectional AFT-local
// and AFT-simple.
at::Tensor AftDenseForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

// Causal: in tiles like AftLocalForm. Bidirectional and on a grid: with weights for every pair of
// tokens. It sums positive terms only; eq. 6 with its exp(w) - 1 would suffer from cancellation.
at::Tensor AftConvForm(const MixerConfig& config, const at::Tensor& packed,
                       const MixerTables& tables, const TrainFormOptions& options);

// Treats the text like a prompt: full_decode changes nothing.
at::Tensor BlockLocalForm(const MixerConfig& config, const at::Tensor& packed,
                          const TrainFormOptions& options);

at::Tensor DotProductForm(const MixerConfig& config, const at::Tensor& packed,
                          const TrainFormOptions& options);

// Vectors shorter than 1e-6 count as 1e-6 long.
at::Tensor CosineForm(const MixerConfig& config, const at::Tensor& packed,
                      const TrainFormOptions& options);

// Needs memory for T^2 * heads * score_width numbers at once.
at::Tensor AdditiveForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

at::Tensor LocationForm(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

// The running maximum of a text without tokens.
inline constexpr double kEmptyWkv4Max = -1e30;
// In chunks of 16 tokens: O(T 16 hid), and for wkv7 O(T (16 + head width) hid).
at::Tensor Wkv4Form(const at::Tensor& packed, const MixerTables& tables,
                    const TrainFormOptions& options);
at::Tensor Wkv7Form(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                    const TrainFormOptions& options);

}  // namespace aft
