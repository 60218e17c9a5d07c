#pragma once

#include <cstdint>

#include "model/config/formats.h"
#include "model/kernels/attention/attention.h"

// The operators computed directly from their definitions, one query at a time over a list of the
// keys that it sees. They support what the other kernels cannot: a mask for each pair of a query
// and a key, and key sequences that are longer or shorter than the query sequences. They compute a
// score for every pair; for AFT-simple, AFT-local and AFT-full one per channel too.
namespace aft::kernels {

struct SeenKeys {
  int64_t count = 0;              // at least 1
  const int32_t* rows = nullptr;  // [count]; rows in the matrices of keys and values
  const float* biases = nullptr;  // [count], finite; added to the scores
};

// y_c = sum_i exp(k_ic + bias_i) v_ic / sum_i exp(k_ic + bias_i) for `hid` channels c. The
// exponents are (k - max k) + bias, minus the largest of these numbers, so that keys and biases may
// have any size.
//   k, v  point to the first key and value; rows are `stride` floats apart
//   ring  with kBf16 keys and values are rounded first, as a ring of bf16 rounds them
void PairAft(const float* k, const float* v, int64_t stride, int64_t hid, Number ring,
             const SeenKeys& seen, float* y);

// y_c /= 1 + exp(-q_c), which is the gate of AFT.
void PairGate(const float* q, int64_t hid, float* y);

// The scores [count] of one head of an attention, with the biases added.
//   query  the packed row of the query
//   keys   points to the packed row of the first key; rows are `stride` floats apart
void PairScores(const AttentionParams& params, int64_t head, const float* query, const float* keys,
                int64_t stride, const SeenKeys& seen, float* scores);

// y_c = sum_i exp(score_i) v_ic / sum_i exp(score_i) for `width` channels c. `scores` [count] is
// overwritten. `ring`: see PairAft.
void PairMean(const float* v, int64_t stride, int64_t width, Number ring, const SeenKeys& seen,
              float* scores, float* y);

}  // namespace aft::kernels
