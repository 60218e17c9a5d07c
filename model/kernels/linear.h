#pragma once

#include <cstdint>

#include "model/config/formats.h"

namespace aft::kernels {

// A linear layer's weight [out, in] and bias [out], rearranged once at load; the only place that
// knows how a weight is stored. Borrowed memory.
//
// kFp32: panels of kPanel outputs, each [in, kPanel] with the outputs side by side, the last one
// padded with zeros; then the bias, padded likewise. The layout does not depend on the instruction
// set.
struct PackedWeight {
  Number format = Number::kFp32;
  const void* bytes = nullptr;  // 64-byte aligned
  int64_t in = 0;
  int64_t out = 0;
};
inline constexpr int64_t kPanel = 32;

inline int64_t LinearPanels(int64_t out) { return (out + kPanel - 1) / kPanel; }
// Room for a packed weight, in floats whatever the format. REQUIRES: kFp32, the only one so far.
int64_t PackedWeightFloats(int64_t in, int64_t out, Number format);

// Packs weight [out, in] and bias [out] (null: zeros) into PackedWeightFloats() floats at `packed`.
PackedWeight PackLinear(const float* weight, const float* bias, int64_t in, int64_t out,
                        Number format, float* packed);

// What becomes of a product: y = activation(xW^T + b), or y = y + (xW^T + b), the residual.
struct Epilogue {
  constexpr Epilogue(Activation of = Activation::kNone) : activation(of) {}
  static constexpr Epilogue Add() {
    Epilogue epilogue;
    epilogue.add = true;
    return epilogue;
  }

  Activation activation;
  bool add = false;
};

// Computes columns of panels [begin, end) of y [rows, out] from x [rows, in]; rows are x_stride and
// y_stride floats apart. y must not overlap x.
//
// Every output is one chain of fused multiply-adds over in = 0, 1, 2, ... that starts from the
// bias, so a row's result is the same bits for every number of rows and every place among them.
// Different panels may run at once on different threads.
void Linear(const PackedWeight& linear, const float* x, int64_t x_stride, int64_t rows, float* y,
            int64_t y_stride, Epilogue epilogue, int64_t begin, int64_t end);

}  // namespace aft::kernels
