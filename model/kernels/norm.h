#pragma once

#include <cstdint>

namespace aft::kernels {

// y_i = (x_i - mean(x_i)) / sqrt(var(x_i) + eps) * weight + bias for rows [begin, end) of x and y
// [N, width], dense; weight and bias [width]. The variance is the biased one. y may be x. The
// result of a row does not depend on other rows.
void LayerNorm(const float* x, int64_t width, const float* weight, const float* bias, float eps,
               float* y, int64_t begin, int64_t end);

}  // namespace aft::kernels
