#pragma once

#include "model/kernels/aft/aft.h"  // kEmptyMax
#include "model/kernels/cuda/channels.cuh"

// Sums of the AFT kernels. A NaN stays in its channel: maxima ignore it (fmaxf), sums do not.
namespace aft::kernels::cuda {

// ---- Sums without biases, for one channel (model/kernels/README.md)
//
// num and den are relative to exp(max), max the largest key; den >= 1 once a token has entered.
struct Prefix {
  float num = 0.0F;
  float den = 0.0F;
  float max = kEmptyMax;
};

// It takes one exponential, because the larger of the two weights is 1. Here and in Combine each
// product and its sum are rounded once, by fmaf. If nvcc chose, the choice could differ from kernel
// to kernel, and rows that are computed in two ways would differ in their last bits.
__device__ inline void Insert(Prefix& sums, float k, float v) {
  const float e = Exp(-fabsf(k - sums.max));
  const bool rises = k > sums.max;
  sums.num = rises ? fmaf(sums.num, e, v) : fmaf(e, v, sums.num);
  sums.den = rises ? fmaf(sums.den, e, 1.0F) : sums.den + e;
  sums.max = fmaxf(sums.max, k);
}

// Combines the sums of two sets of tokens. It is associative up to rounding; Prefix{} is the
// neutral element.
__device__ inline Prefix Combine(const Prefix& a, const Prefix& b) {
  const float e = Exp(-fabsf(b.max - a.max));
  const bool rises = b.max > a.max;
  Prefix sums;
  sums.num = rises ? fmaf(a.num, e, b.num) : fmaf(e, b.num, a.num);
  sums.den = rises ? fmaf(a.den, e, b.den) : fmaf(e, b.den, a.den);
  sums.max = fmaxf(a.max, b.max);
  return sums;
}

// num / den * sigmoid(q), with one reciprocal.
__device__ inline float Gated(float num, float den, float q) {
  return num * Reciprocal(den * (1.0F + Exp(-q)));
}

}  // namespace aft::kernels::cuda
