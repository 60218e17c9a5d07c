#pragma once

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/config/formats.h"

namespace aft {

// The activations in float64, by their definitions.
inline double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kSquaredRelu:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x * M_SQRT1_2);
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  AFT_CHECK(false);
}

}  // namespace aft
