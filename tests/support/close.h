#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/tolerances.h"

namespace aft {

// How far results are from their reference.
struct Errors {
  double worst = 0;     // largest |y - reference|
  double relative = 0;  // largest |y - reference| / max(1, |reference|)
  double rms = 0;       // root mean square of y - reference, over that of the reference
  size_t at = 0;        // where `relative` is
};

// A value that is NaN or infinite, and differs from its reference, makes every error infinite.
// REQUIRES: as many results as references.
template <class Y, class Reference>
Errors CompareWith(const std::vector<Reference>& reference, const std::vector<Y>& y) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Errors errors;
  double error_squares = 0;
  double squares = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const auto value = static_cast<double>(y[i]);
    const auto wanted = static_cast<double>(reference[i]);
    if (value == wanted || (std::isnan(value) && std::isnan(wanted))) {
      if (std::isfinite(value)) squares += value * value;
      continue;
    }
    const double error = std::abs(value - wanted);
    if (!std::isfinite(error)) return {kInfinity, kInfinity, kInfinity, i};
    errors.worst = std::max(errors.worst, error);
    const double relative = error / std::max(1.0, std::abs(wanted));
    if (relative > errors.relative) {
      errors.relative = relative;
      errors.at = i;
    }
    error_squares += error * error;
    squares += wanted * wanted;
  }
  if (error_squares > 0) errors.rms = std::sqrt(error_squares / squares);
  return errors;
}

// EXPECT_TRUE(Close(y, reference, tolerance::kFp32)).
template <class Y, class Reference>
testing::AssertionResult Close(const std::vector<Y>& y, const std::vector<Reference>& reference,
                               const Tolerance& tolerance) {
  if (y.size() != reference.size()) {
    return testing::AssertionFailure() << y.size() << " numbers, not " << reference.size();
  }
  const Errors errors = CompareWith(reference, y);
  if (errors.relative <= tolerance.each && errors.rms <= tolerance.rms) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << "error " << errors.relative << " (allowed " << tolerance.each << "), root mean square "
         << errors.rms << " (allowed " << tolerance.rms << "); number " << errors.at << " is "
         << y[errors.at] << ", not " << reference[errors.at];
}

}  // namespace aft
