#pragma once

#include <cstdint>

#include "model/config/formats.h"

namespace aft::kernels {

// What becomes of a product: y = activation(xW^T + b), or y = y + (xW^T + b), the residual.
struct Epilogue {
  // NOLINTNEXTLINE(google-explicit-constructor): an activation is one
  constexpr Epilogue(Activation of = Activation::kNone) : activation(of) {}
  static constexpr Epilogue Add() {
    Epilogue epilogue;
    epilogue.add = true;
    return epilogue;
  }

  Activation activation;
  bool add = false;
};

// The rows of a product. Where QuantizedBytes (linear.h) says so they are quantized first: for
// kBf16 rounded to it; for kInt8 x = scale * integer with scale = largest |x| of the row / 127, and
// a row that holds NaN or infinity becomes NaN.
struct LinearRows {
  const float* x = nullptr;  // [rows, in], rows `stride` floats apart
  int64_t stride = 0;
  int64_t rows = 0;
  const void* quantized = nullptr;  // of QuantizeRows; then x is not read
};

}  // namespace aft::kernels
