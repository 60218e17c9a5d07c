#ifndef AFT_MODEL_MIXERS_AFT_BAND_H_
#define AFT_MODEL_MIXERS_AFT_BAND_H_

#include <cstdint>
#include <vector>

#include "model/config/config.h"
#include "model/kernels/aft.h"
#include "model/mixers/tables.h"

namespace aft {

// The biases of AFT-simple (none), AFT-local and AFT-full as one band, whatever their form in the
// checkpoint (config/config.h): w.full is cut to the band, w.u and w.v are multiplied out for it,
// and the length policy's row for positions beyond band_rows comes last.
struct AftBand {
  std::vector<float> w;  // [rows, columns] as kernels::AftBias takes them; empty when window = 0
  int64_t rows = 1;
  int64_t window = 0;
  bool causal = true;
};

// `tables` hold what ExpectedMixerTables lists.
AftBand FoldAftBand(const MixerConfig& config, const MixerTables& tables);

// The same as the CPU's kernels read it.
kernels::AftBias FoldAftBias(const MixerConfig& config, const MixerTables& tables);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_AFT_BAND_H_
