#pragma once

#include <vector>

#include "model/config/formats.h"

namespace aft {

// The formats of numbers whose FormatSpec `has` a property, for tests of all of them.
template <typename Has>
std::vector<Number> FormatsThat(const Has& has) {
  std::vector<Number> formats;
  for (const FormatSpec& spec : kFormats) {
    if (has(spec)) formats.push_back(spec.format);
  }
  return formats;
}

inline std::vector<Number> QuantizedFormats() {
  return FormatsThat([](const FormatSpec& spec) { return IsQuantized(spec.format); });
}

}  // namespace aft
