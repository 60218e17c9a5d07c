#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// The small operators between the matrix products. Each processes every row by itself. Types of In
// -> Out: fp32 to fp32, bf16 or fp16, or both bf16 or fp16; others are cudaErrorInvalidValue.
namespace aft::kernels::cuda {

// Replaces a token id and means the token that the slot sampled last (Sample, sampler.h). Its value
// is that of kLastSampled in model/api/model_runner.h.
inline constexpr int32_t kLastSampledToken = -1;

struct EmbedModel {
  int64_t width = 0;  // d
  // [vocab_size, d]; int8: [vocab_size, QuantizedColumns(d)]
  const void* table = nullptr;
  Number type = Number::kFp32;
  float scale = 1.0F;
  const float* positions = nullptr;  // learned [position_rows, d], or null
  // [(d + 1) / 2] radians per token for sinusoidal positions, with sines in even columns; or null.
  const double* frequencies = nullptr;
  const float* table_scale = nullptr;  // [vocab_size], only with int8
};

// x[i] = table[tokens[i]] * scale + position (model/layers/embedding.h). Rows whose slot is
// negative get zeros.
//   tokens [count]    ids, or kLastSampledToken for last_sampled[slots[i]]
//   slots, positions [count]
int Embed(const EmbedModel& model, const int32_t* tokens, const int32_t* slots,
          const int64_t* positions, const int32_t* last_sampled, int64_t count, float* x,
          Stream stream);

// The residual and the norm after it in one pass:
//   x += branch + branch_bias            nothing is added when branch.data is null
//   y = (x - mean) / sqrt(var + eps) * weight + bias
// x [count, width] fp32, dense; branch fp32; width <= kMaxNormWidth; branch_bias [width] or null. y
// may also be int8 (types.h).
inline constexpr int64_t kMaxNormWidth = 8192;
struct NormModel {
  int64_t width = 0;
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]
  float eps = 1e-5F;
};
int AddNorm(const NormModel& norm, float* x, In branch, const float* branch_bias, int64_t count,
            Out y, Stream stream);

// y = activation(x + bias); bias [width] or null. y may be x.
int BiasActivation(In x, const float* bias, Activation activation, int64_t count, int64_t width,
                   Out y, Stream stream);

// y[i] = x[index[i]] for i < count; rows with a negative index get zeros. y must not overlap x.
int GatherRows(In x, const int64_t* index, int64_t count, int64_t width, Out y, Stream stream);

}  // namespace aft::kernels::cuda
