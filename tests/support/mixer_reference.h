#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/config/config.h"

namespace aft {

// Row-major, under the names of ExpectedMixerTables (model/config/tensors.h).
using ReferenceTables = std::map<std::string, std::vector<double>>;

// Computes every mixer from its formula, with loops over all pairs of tokens in double. It is the
// ground truth of the kernels' tests, and uses neither recurrences (except for wkv7) nor rings, and
// no optimisation.
//
//   Y_t = g_t * sum_t' exp(S(t, t')) V_t' / sum_t' exp(S(t, t'))    over the t' that t sees
//
// with g = sigmoid(Q) for the AFT kinds and 1 for the attentions, and S by kind:
//
//   AFT          K_t' + w(t, t')                                    per channel; AFT-conv per head
//   dot product, block-local     q.k / sqrt(head width)             per head
//   cosine       softplus(b_t) q.k / (max(|q|, e) max(|k|, e)), e = 1e-6 (kCosineEps)
//   additive     score.v . tanh(q_t + k_t')
//   location     location.weight[t'] . q_t                          one head
//   wkv4         K_t' - (t - t' - 1) exp(decay), and K_t + bonus for t' = t; gated like AFT
//
// wkv7 has no such form. Its reference advances the matrix S of kernels/wkv/wkv.h.
//
// The mask is added to S of its key. A token that sees no key, or only keys whose mask is -inf or
// at most -1e30, gives zeros.
//
// w(t, t') of a table by absolute position (T = band_rows > 0) is the entry of row t. For t >= T it
// is the entry of row T - 1 at the same offset t - t' (kClamp), or 0 (kZero). Pairs for which the
// table has no entry (outside the window; dense forms: t' >= T, or a column before 0 of the clamped
// row) have w = 0. With prefix_block H, t sees t' >= (t div H - 1) * H. block-local's full_decode
// changes nothing, because the tokens are a prompt.
//
// `pairs` is added to S of its query and key by the same rules. When `keys` is not empty, keys and
// values are taken from its rows, which may be fewer or more than the queries.
//
//   packed [T, PackedWidth()], keys [T', PackedWidth()] or empty, mask [T'] or empty,
//   pairs [T, T'] or empty -> [T, hid]
std::vector<double> ReferenceMixer(const MixerConfig& config, int64_t hid,
                                   const std::vector<double>& packed, const ReferenceTables& tables,
                                   const std::vector<double>& mask = {}, int64_t grid_width = 0,
                                   const std::vector<double>& pairs = {},
                                   const std::vector<double>& keys = {});

// A small mixer of this kind for texts of up to `tokens`. Every suite that goes through all kinds
// uses it. Its heads divide even widths.
MixerConfig ExampleMixer(MixerKind kind, int64_t tokens, bool causal = true);

// Gives a network this mixer. RWKV's kinds need other parts too: wkv4 gets the gated feed-forward.
void UseMixer(const MixerConfig& mixer, NetworkConfig* config);

// conv.w [h, s] or [h, s, s] as the filter is applied: eq. 8 when the config says so.
std::vector<double> ReferenceConvFilter(const MixerConfig& config, const ReferenceTables& tables);

inline constexpr double kCosineEps = 1e-6;

}  // namespace aft
