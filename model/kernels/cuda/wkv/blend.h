#pragma once

#include <cstdint>

#include "model/kernels/cuda/types.h"

// The elementwise operations around RWKV's products, those of model/kernels/wkv/blend.h. Matrices
// are dense fp32 unless said otherwise.
namespace aft::kernels::cuda {

// The tokens of all rows of a step, one after the other. A slot has one row.
struct TokenRows {
  int64_t tokens = 0;
  const int32_t* slot = nullptr;      // [tokens]; negative: padding
  const int64_t* position = nullptr;  // [tokens]
  bool single = false;                // every row is one token
};

struct ShiftModel {
  int64_t width = 0;
  int64_t parts = 0;
  const float* share = nullptr;  // [parts, width]
};

// The token shift: y[p] = x + (x' - x) share[p] for each part p, with the vector x' of the token
// before, which is zero for a text's first token. `state` keeps the last vector of each row. Part p
// of y begins p * part_rows rows after the first part. Padding gets zeros and has no state. With
// rows of several tokens there is a second launch, which writes the states that the first one read.
//   x [tokens, width]; y of any type
int ShiftTokens(const ShiftModel& model, const TokenRows& rows, const float* x, State state, Out y,
                int64_t part_rows, Stream stream);

// The function that applies to a column of a matrix.
enum class ColumnFunction : uint8_t { kNone, kTanh, kSigmoid };
// y = function(x) column by column; function [width]. y has any type, and may be x.
int ApplyToColumns(const float* x, const ColumnFunction* function, int64_t count, int64_t width,
                   Out y, Stream stream);

// Mixes the values [count, width] of a layer, whose rows are `stride` numbers apart, with those of
// the first layer: values += (first - values) sigmoid(gate). Without `gate` it is the first layer:
// first = values.
int MixValues(float* values, int64_t stride, const float* gate, int64_t count, int64_t width,
              float* first, Stream stream);

// y *= sigmoid(gate); both [count, width].
int MultiplyBySigmoid(const float* gate, int64_t count, int64_t width, float* y, Stream stream);

}  // namespace aft::kernels::cuda
