#pragma once

#include <cstdint>

#include "model/config/formats.h"

namespace aft::kernels {

// How a product is stored: y = activation(xW^T + b), or y = y + (xW^T + b), the residual.
struct Epilogue {
  // NOLINTNEXTLINE(google-explicit-constructor): callers pass an Activation as an Epilogue
  constexpr Epilogue(Activation of = Activation::kNone) : activation(of) {}
  static constexpr Epilogue Add() {
    Epilogue epilogue;
    epilogue.add = true;
    return epilogue;
  }

  Activation activation;
  bool add = false;
};

// The rows of a product. Where QuantizedBytes (linear.h) is above 0 they are quantized first. For
// kBf16 they are rounded to bf16. For kInt8 x = scale * integer with scale = largest |x| of the row
// / 127, and a row that holds NaN or infinity becomes NaN.
struct LinearRows {
  const float* x = nullptr;  // [rows, in], rows `stride` floats apart
  int64_t stride = 0;
  int64_t rows = 0;
  const void* quantized = nullptr;  // written by QuantizeRows; if set, x is not read
};

}  // namespace aft::kernels
