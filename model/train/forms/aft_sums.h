#pragma once

#include <cstdint>
#include <tuple>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// The functions that the differentiable forms of the AFT family share. They compute means of values
// weighted by exp(key + bias), as matrix products.
//
// Numerics: the products use exp(key - anchor), at least exp(-60), where the anchor is the largest
// key of the channel. They use biases relative to the largest bias of their row. This is finite in
// fp32 and bf16, and accurate as long as a row's sum of weights is above exp(-30). The sum is
// smaller when a later key, or a bias, outweighs everything that a row sees. Redo then takes
// differences to the row's own maximum, which is always accurate.

// The key of a place that is empty or masked; its value is 0, so that it weighs nothing.
inline constexpr double kEmptyKey = -1e30;

// Keys and values under a mask [B, T] (SequenceBatch::mask): masked tokens get a key of kEmptyKey
// and a value of 0. Unchanged when the mask is undefined. k [B, T, n], v [B, T, m].
std::tuple<at::Tensor, at::Tensor> Masked(const at::Tensor& k, const at::Tensor& v,
                                          const at::Tensor& mask);

// [exp(k - anchor) v, exp(k - anchor)], side by side in the last dimension. k may have one column
// for all of v's.
at::Tensor WeightedValues(const at::Tensor& k, const at::Tensor& v, const at::Tensor& anchor);

// exp(bias - rise) of rows of biases, -inf where a row does not see a key; rise is the largest bias
// of each row, at least `floor`.
struct BiasWeights {
  at::Tensor weights;  // like bias
  at::Tensor rise;     // last dimension 1; detached
};
BiasWeights ExpBias(const at::Tensor& bias, double floor);

// Causal sums over all earlier tokens, tile by tile. A tile of L rows is multiplied with its own
// keys and the C - 1 keys before it; everything older is added as one running sum.
//   operand [B, C + T, G, n]  WeightedValues of C >= 1 older tokens and T new ones, in G groups
//   bias    [R or 1, G, L, C - 1 + L]  for R = ceil(T / L) tiles
//   -> [B, T, G, n]
at::Tensor PrefixSums(const at::Tensor& operand, const at::Tensor& bias, int64_t context,
                      at::ScalarType gemm);

// num / den of sums [..., rows, num | den], where den has `keys` columns. Rows that see no key
// (`seen` is false there, broadcast to den) give zeros. When `seen` is undefined all rows see a
// key. `bad` marks elements of den that are too small; their quotient is finite but meaningless.
struct Quotient {
  at::Tensor mean;
  at::Tensor bad;
};
Quotient Divide(const at::Tensor& sums, int64_t keys, const at::Tensor& seen);

// The mean of a quotient [B, R, L, n]. Every column of L rows with a bad element is computed again
// exactly, which takes N times the memory. k and v [B, R, N, n]; bias() [R or 1, L, N], -inf where
// a row does not see a key.
at::Tensor Redo(const Quotient& quotient, const at::Tensor& k, const at::Tensor& v,
                absl::FunctionRef<at::Tensor()> bias);

// The means of L rows over the N keys of their tile, all at once. Redo computes `bad` ones again.
//   k, v [B, R, N, n]; bias [R or 1, L, N], -inf where a row does not see a key; live [B, R, N, 1]
//   or undefined: which keys are not masked -> [B, R, L, n]
at::Tensor TileMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias, double floor,
                    const at::Tensor& live, at::ScalarType gemm);

// ---- The position biases of AFT-local and AFT-full as the forms use them. Like AftBand, a band
// has a column for every key from t - s + 1 on. A bias is -inf where a row does not see a key.

// Biases of L rows over the C keys before them and their own L: 0 outside the window, -inf in the
// future. band [R, L, s], undefined without biases -> [R or 1, L, C + L].
at::Tensor CausalBandBias(const at::Tensor& band, int64_t context, int64_t length,
                          const at::TensorOptions& options);

// Turns the table, which may have any form, into a band for `tokens` tokens, after the length
// policy: [1 or tokens, s], or 2s - 1 columns when bidirectional; undefined without biases.
at::Tensor BandFor(const MixerConfig& config, const MixerTables& tables, int64_t tokens);

// The biases of every pair of tokens, [T, T]; undefined when every token sees all without a bias.
at::Tensor DenseBias(const MixerConfig& config, const MixerTables& tables, int64_t tokens);

}  // namespace aft
