#pragma once

#include <cstdint>
#include <tuple>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// What the differentiable forms of the AFT family share: means of values weighted by
// exp(key + bias), as matrix products.
//
// Numerics: the products take keys relative to an anchor, the largest key of the channel, raised to
// at least exp(-60), and biases relative to the largest of their row. That is finite in fp32 and
// bf16 and accurate as long as a row's sum of weights is above exp(-30). Where it is not (a later
// key outweighs all that a row sees, or a bias does), Redo takes differences to the row's own
// maximum, which is accurate for everything.

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

// Causal sums over all that came before, tile by tile: each tile of L rows beside the C - 1 keys
// before it, plus everything older as one running sum.
//   operand [B, C + T, G, n]  WeightedValues of C >= 1 older tokens and T new ones, in G groups
//   bias    [R or 1, G, L, C - 1 + L]  for R = ceil(T / L) tiles
//   -> [B, T, G, n]
at::Tensor PrefixSums(const at::Tensor& operand, const at::Tensor& bias, int64_t context,
                      at::ScalarType gemm);

// num / den of sums [..., rows, num | den], where den has `keys` columns. Rows that see no key
// (`seen` false, broadcast to den; may be undefined: all do) give zeros. `bad` marks elements of
// den that are too small; their quotient is finite, but worth nothing.
struct Quotient {
  at::Tensor mean;
  at::Tensor bad;
};
Quotient Divide(const at::Tensor& sums, int64_t keys, const at::Tensor& seen);

// The mean of a quotient [B, R, L, n], in which every column of L rows with anything bad is done
// again exactly, at N times the memory. k and v [B, R, N, n]; bias() [R or 1, L, N], -inf where
// unseen.
at::Tensor Redo(const Quotient& quotient, const at::Tensor& k, const at::Tensor& v,
                absl::FunctionRef<at::Tensor()> bias);

// The means of L rows over the N keys of their tile, all at once, `bad` ones again by Redo.
//   k, v [B, R, N, n]; bias [R or 1, L, N], -inf where unseen; live [B, R, N, 1] or undefined:
//   which keys are not masked -> [B, R, L, n]
at::Tensor TileMean(const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias, double floor,
                    const at::Tensor& live, at::ScalarType gemm);

// ---- The position biases of AFT-local and AFT-full as the forms use them. A band has a
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
