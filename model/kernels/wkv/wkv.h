#pragma once

#include <cstdint>

#include "model/kernels/ragged_batch.h"
#include "model/kernels/state_view.h"

namespace aft::kernels {

// The recurrences of RWKV-4 and RWKV-7 (README.md). Both run token by token in prompts too, so the
// bits of a token do not depend on how its text is cut, nor on the other rows. All numbers are
// fp32.

// RWKV-4 (arXiv 2305.13048), for each channel, with the gate:
//
//   y_t = sigmoid(r_t) * (e^(m - q) n + e^(k + u - q) v) / (e^(m - q) D + e^(k + u - q))
//
// where n, D are the sums of e^k v and e^k over the tokens before t, each times its decay, relative
// to e^m; u is the bonus of the token itself, and q the larger of m and k + u.
struct Wkv4Params {
  int64_t hid = 0;
  const float* decay = nullptr;  // [hid], natural logarithm of a token's decay, at most 0
  const float* bonus = nullptr;  // [hid], u
};
// The state of a sequence: n, D, m [hid] each.
inline int64_t Wkv4StateFloats(const Wkv4Params& params) { return 3 * params.hid; }

// Work is cut into units of one row (sequence) and kWkv4Tile channels.
inline constexpr int64_t kWkv4Tile = 64;
inline int64_t Wkv4Units(const Wkv4Params& params, int64_t rows) {
  return rows * ((params.hid + kWkv4Tile - 1) / kWkv4Tile);
}

// Computes units [begin, end) of a batch of prompt chunks and single tokens.
//
//   in [N, 3 * hid]  r, k, v side by side; rows in_stride floats apart
//   state            of this layer; updated
//   y [N, hid]       rows y_stride floats apart; must not overlap `in`
//
// Different units may run at the same time on different threads.
void Wkv4Forward(const Wkv4Params& params, const RaggedBatch& batch, const float* in,
                 int64_t in_stride, StateView state, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);

// RWKV-7 (arXiv 2503.14456), for each head of N = hid / heads channels. S [key j, value i]:
//
//   w = exp(-e^(-1/2) sigmoid(w_t))   a = sigmoid(a_t)   c = unit vector of key_scale * k_t
//   k = k_t (1 + (a - 1) key_rate)
//   S[j, i] <- w[j] S[j, i] - (sum_l c[l] S[l, i]) c[j] a[j] + k[j] v[i]
//   y = g_t * (norm(sum_j S[j, :] r[j]) + (sum_j r[j] k[j] bonus[j]) v)
//
// norm has mean 0 and variance 1 over the head, then a weight and a bias for each channel. Its
// epsilon is N * 1e-5, as in flash-linear-attention; RWKV's own programs have only heads of 64.
struct Wkv7Params {
  int64_t hid = 0;
  int64_t heads = 1;
  const float* key_scale = nullptr;  // these are [hid]
  const float* key_rate = nullptr;
  const float* bonus = nullptr;
  const float* norm_weight = nullptr;
  const float* norm_bias = nullptr;
  const float* initial = nullptr;  // S before a text's first token; null: zeros

  int64_t head_width() const { return hid / heads; }
};
// The state of a sequence: S [heads, N, N], a row for each key channel.
inline int64_t Wkv7StateFloats(const Wkv7Params& params) {
  return params.hid * params.head_width();
}
// The floats of scratch that each thread needs.
inline int64_t Wkv7ScratchFloats(const Wkv7Params& params) {
  return 5 * (params.head_width() + 16);
}

// Computes units [begin, end) of a batch; a unit is one row (sequence) and one head.
//
//   in [N, 6 * hid]  r, w, k, v, a, g side by side; rows in_stride floats apart
//   scratch          Wkv7ScratchFloats() of this thread, 64-byte aligned
//
// The rest is as in Wkv4Forward.
void Wkv7Forward(const Wkv7Params& params, const RaggedBatch& batch, const float* in,
                 int64_t in_stride, StateView state, float* y, int64_t y_stride, float* scratch,
                 int64_t begin, int64_t end);

}  // namespace aft::kernels
