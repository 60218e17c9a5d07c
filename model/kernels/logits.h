#pragma once

#include <cstdint>

// Vectorised operations of a sampler on a row of logits. Their results are the same on every
// instruction set unless a function says otherwise.
namespace aft::kernels {

// Sets values[i] to logits[i], but NaN becomes -inf, +inf the largest float and -0 becomes 0.
// Returns the highest value. REQUIRES: count >= 1.
float FiniteLogits(const float* logits, int64_t count, float* values);

// Returns the index of the first of values[first .. count - 1] that is at least `least`, or `count`
// if there is no such value.
int64_t NextAtLeast(const float* values, int64_t first, int64_t count, float least);

// A Gumbel-max draw. sampling/sampler.h has the rule, and says which random words it uses.
struct GumbelDraw {
  uint64_t seed = 0;
  uint64_t output_index = 0;
  float temperature = 1.0F;  // > 0
  float highest = 0.0F;      // of the logits
  float lowest = 0.0F;       // logit of a token that may be drawn
};

// Finds the tokens that can win, without computing their logarithms. bounds[i] is an upper bound of
// (logits[i] - highest) / temperature + g_i. Where that value is above -100, rounding may put the
// bound below it by at most 1e-4. Where g_i is above 2, the bound is at most 0.13 above it, except
// for the two largest random words, whose bound is higher. bounds[i] is -inf where logits[i] <
// lowest. Returns the largest bound. The bits may differ between instruction sets. REQUIRES: count
// >= 1; no logit is NaN or above `highest`.
float GumbelBounds(const GumbelDraw& draw, const float* logits, int64_t count, float* bounds);

}  // namespace aft::kernels
