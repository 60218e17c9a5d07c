#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"

namespace aft {

// A mixer's tables by the names that ExpectedMixerTables (config/tensors.h) lists, e.g. "w.band".
using MixerTables = std::map<std::string, at::Tensor>;

// DATA_LOSS when a table that ExpectedMixerTables lists is missing, has another shape, or is not
// contiguous fp32.
absl::Status CheckMixerTables(const MixerConfig& config, int64_t hid, const MixerTables& tables);

// The position biases of AFT-simple (none), AFT-local and AFT-full as one band, whatever their form
// in the checkpoint is. w.full is cut to the band; w.u and w.v are multiplied for the band.
struct AftBand {
  // Pairs with |t - t'| < window have a bias.
  int64_t window = 0;
  // [rows, columns], contiguous, of the tables' type and device; undefined when the window is 0.
  // Row t has the biases of the keys t - window + 1 .. t, and further ones up to t + window - 1
  // when bidirectional. All later positions use the last row, if the length policy allows any.
  at::Tensor w;
};

// `tables` hold the tensors that ExpectedMixerTables lists. Differentiable in them.
AftBand FoldAftBand(const MixerConfig& config, const MixerTables& tables);

// Does what FoldAftBand does, for a mixer that serves: a product of w.u and w.v has the same bits
// on every processor. DATA_LOSS when a bias is not finite: that product may overflow.
absl::StatusOr<AftBand> CheckedAftBand(const MixerConfig& config, const MixerTables& tables);

// The floats of that band's `w`. 0: there is no band.
int64_t AftBandFloats(const MixerConfig& config);

// The floats of the table that a kernel makes of that band (kernels::AftBias). 0: there is no band.
int64_t AftTableFloats(const MixerConfig& config);

// AFT-conv's filter as it is applied: conv.w [heads, taps], normalised per head with conv.gamma and
// conv.beta (eq. 8) when the config says so. Differentiable in the tables.
at::Tensor AppliedConvFilter(const MixerConfig& config, const MixerTables& tables);

// AppliedConvFilter in the form for kernels, checked.
struct ConvFilter {
  int64_t heads = 1;
  int64_t taps = 1;       // per head: s, or s * s on images
  std::vector<double> w;  // [taps, heads]
  bool wide = false;      // some |w| is above kernels::kNarrowBias
};

// DATA_LOSS when the filter is not finite, or if it is normalised and all taps of a head are equal.
absl::StatusOr<ConvFilter> FoldConvFilter(const MixerConfig& config, const MixerTables& tables);

}  // namespace aft
