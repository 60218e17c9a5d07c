#ifndef AFT_MODEL_MIXERS_TABLES_H_
#define AFT_MODEL_MIXERS_TABLES_H_

#include <cstdint>
#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "model/config/config.h"

namespace aft {

// A mixer's tables by the names that ExpectedMixerTables (config/tensors.h) lists, e.g. "w.band".
using MixerTables = std::map<std::string, at::Tensor>;

// DATA_LOSS when one that ExpectedMixerTables lists is missing, has another shape, or is not
// contiguous fp32.
absl::Status CheckMixerTables(const MixerConfig& config, int64_t hid, const MixerTables& tables);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_TABLES_H_
