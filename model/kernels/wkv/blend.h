#pragma once

#include <cstdint>

namespace aft::kernels {

// The elementwise operations around RWKV's products. Arrays are dense; `y` may be an input.

// y[i] = a[i] + (b[i] - a[i]) * share[i], for count numbers: a at share 0, b at 1.
void Blend(const float* a, const float* b, const float* share, int64_t count, float* y);
// Blend with the shares sigmoid(gate[i]).
void BlendGated(const float* a, const float* b, const float* gate, int64_t count, float* y);
// y[i] += sigmoid(gate[i]) * x[i].
void AddGated(const float* x, const float* gate, int64_t count, float* y);

void Tanh(const float* x, int64_t count, float* y);
void Sigmoid(const float* x, int64_t count, float* y);

}  // namespace aft::kernels
