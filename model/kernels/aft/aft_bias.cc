#include <algorithm>
#include <cmath>

#include "model/kernels/aft/aft.h"

namespace aft::kernels {

AftBias::AftBias(const float* band, int64_t band_rows, int64_t s, bool only_past)
    : window(s), causal(only_past), rows(band_rows) {
  const int64_t n = columns();
  wide = std::any_of(band, band + rows * n, [](float w) { return std::abs(w) > kNarrowBias; });
  table.resize(static_cast<size_t>(rows * (n + 2 * kPadding)));
  for (int64_t row = 0; row < rows; ++row) {
    float* to = table.data() + row * (n + 2 * kPadding) + kPadding;
    for (int64_t i = 0; i < n; ++i) {
      const float w = band[row * n + i];
      to[i] = wide ? w : static_cast<float>(std::exp(static_cast<double>(w)));
    }
  }
}

}  // namespace aft::kernels
