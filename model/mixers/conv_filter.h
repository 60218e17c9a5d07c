#ifndef AFT_MODEL_MIXERS_CONV_FILTER_H_
#define AFT_MODEL_MIXERS_CONV_FILTER_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// AFT-conv's filter as it is applied: conv.w [heads, taps], normalised per head with conv.gamma and
// conv.beta (eq. 8) when the config says so. Differentiable in the tables.
at::Tensor AppliedConvFilter(const MixerConfig& config, const MixerTables& tables);

// The same, checked, for kernels.
struct ConvFilter {
  int64_t heads = 1;
  int64_t taps = 1;       // of a head: s, or s * s on images
  std::vector<double> w;  // [taps, heads]
  bool wide = false;      // some |w| is above kernels::kNarrowBias
};

// DATA_LOSS when the filter is not finite, or to be normalised but all taps of a head are equal.
absl::StatusOr<ConvFilter> FoldConvFilter(const MixerConfig& config, const MixerTables& tables);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_CONV_FILTER_H_
