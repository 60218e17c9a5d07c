#ifndef AFT_MODEL_MIXERS_TABLES_H_
#define AFT_MODEL_MIXERS_TABLES_H_

#include <map>
#include <string>

#include "ATen/core/Tensor.h"

namespace aft {

// A mixer's tables by the names that ExpectedMixerTables (network/tensors.h) lists, e.g. "w.band".
using MixerTables = std::map<std::string, at::Tensor>;

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_TABLES_H_
