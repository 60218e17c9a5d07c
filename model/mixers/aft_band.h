#ifndef AFT_MODEL_MIXERS_AFT_BAND_H_
#define AFT_MODEL_MIXERS_AFT_BAND_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "model/config/config.h"
#include "model/mixers/tables.h"

namespace aft {

// The position biases of AFT-simple (none), AFT-local and AFT-full as one band, whatever their form
// in the checkpoint: w.full is cut to the band, w.u and w.v are multiplied out for it.
struct AftBand {
  // |t - t'| < window have a bias.
  int64_t window = 0;
  // [rows, columns] like the tables, contiguous; undefined when the window is 0. Row t has the
  // biases of the keys t - window + 1 .. t, and on to t + window - 1 when bidirectional. The last
  // row holds for all later positions too, if the length policy allows any.
  at::Tensor w;
};

// `tables` hold what ExpectedMixerTables lists. Differentiable in them.
AftBand FoldAftBand(const MixerConfig& config, const MixerTables& tables);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_AFT_BAND_H_
