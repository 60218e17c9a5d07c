#ifndef AFT_TESTS_CUDA_COMPARE_H_
#define AFT_TESTS_CUDA_COMPARE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/check.h"

namespace aft {

// How far results are from float64, in the terms of aft-operators.md section 7.
struct Errors {
  double worst = 0.0;     // largest |y - reference|
  double relative = 0.0;  // largest |y - reference| / max(1, |reference|)
  double rms = 0.0;       // of y - reference, over that of the reference
};

// A value that is NaN or infinite, and differs from its reference, makes every error infinite.
inline Errors CompareWith(const std::vector<double>& reference, const std::vector<float>& y) {
  AFT_CHECK(reference.size() == y.size());
  Errors errors;
  double difference_squares = 0.0;
  double squares = 0.0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double value = static_cast<double>(y[i]);
    if (value == reference[i] || (std::isnan(value) && std::isnan(reference[i]))) {
      if (std::isfinite(value)) squares += value * value;
      continue;
    }
    const double difference = std::abs(value - reference[i]);
    if (!std::isfinite(difference)) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      return {kInfinity, kInfinity, kInfinity};
    }
    errors.worst = std::max(errors.worst, difference);
    errors.relative = std::max(errors.relative, difference / std::max(1.0, std::abs(reference[i])));
    difference_squares += difference * difference;
    squares += reference[i] * reference[i];
  }
  if (difference_squares > 0) errors.rms = std::sqrt(difference_squares / squares);
  return errors;
}

}  // namespace aft

#endif  // AFT_TESTS_CUDA_COMPARE_H_
