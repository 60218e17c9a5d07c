#pragma once

#include <cstdint>

#include "model/kernels/attention/attention.h"

// The operators as they are written, a query at a time over a list of the keys that it sees. They
// take what the other kernels have no place for: a mask of pairs, and sequences of keys that are
// longer or shorter than those of queries. They cost a score of every pair, and a score of every
// pair and channel for AFT-simple, AFT-local and AFT-full.
namespace aft::kernels {

struct SeenKeys {
  int64_t count = 0;              // 1 and more
  const int32_t* rows = nullptr;  // [count], of the matrices of keys and values
  const float* biases = nullptr;  // [count], finite: added to the scores
};

// y_c = sum_i exp(k_ic + bias_i) v_ic / sum_i exp(k_ic + bias_i) for `hid` channels c.
// The exponents are (k - max k) + bias, less their own maximum, so that keys and biases may be of
// any size.
//   k, v  of the first key; rows are `stride` floats apart
void PairAft(const float* k, const float* v, int64_t stride, int64_t hid, const SeenKeys& seen,
             float* y);

// y_c /= 1 + exp(-q_c): the gate of AFT.
void PairGate(const float* q, int64_t hid, float* y);

// scores [count] of one head of an attention, with the biases.
//   query  the packed row of the query; keys: of the first key
void PairScores(const AttentionParams& params, int64_t head, const float* query, const float* keys,
                int64_t stride, const SeenKeys& seen, float* scores);

// y_c = sum_i exp(score_i) v_ic / sum_i exp(score_i) for `width` channels c; scores [count] is
// overwritten.
void PairMean(const float* v, int64_t stride, int64_t width, const SeenKeys& seen, float* scores,
              float* y);

}  // namespace aft::kernels
