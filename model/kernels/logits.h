#pragma once

#include <cstdint>

// What a sampler does with a row of logits, in vectors. The same numbers on every instruction set
// where it does not say otherwise.
namespace aft::kernels {

// values[i] = logits[i], but NaN becomes -inf, +inf the largest float and -0 becomes 0. Returns the
// highest. REQUIRES: count >= 1.
float FiniteLogits(const float* logits, int64_t count, float* values);

// Place of the first of values[first .. count - 1] that is at least `least`; `count`: none is.
int64_t NextAtLeast(const float* values, int64_t first, int64_t count, float least);

// A draw by the Gumbel maximum; sampling/sampler.h has the rule, and names the random words.
struct GumbelDraw {
  uint64_t seed = 0;
  uint64_t output_index = 0;
  uint32_t sequence = 0;
  float temperature = 1.0F;  // > 0
  float highest = 0.0F;      // of the logits
  float lowest = 0.0F;       // logit of a token that may be drawn
};

// Which tokens can win, without their logarithms: bounds[i] is no less than
// (logits[i] - highest) / temperature + g_i, but for at most 1e-4 of rounding where that is above
// -100, and within 0.13 of it where g_i is above 2; -inf where logits[i] < lowest. Returns the
// largest; the bits may differ between instruction sets. REQUIRES: count >= 1; no logit is NaN or
// above `highest`.
float GumbelBounds(const GumbelDraw& draw, const float* logits, int64_t count, float* bounds);

}  // namespace aft::kernels
