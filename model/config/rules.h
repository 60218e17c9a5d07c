#ifndef AFT_MODEL_CONFIG_RULES_H_
#define AFT_MODEL_CONFIG_RULES_H_

#include "absl/status/status.h"
#include "model/config/config.h"

namespace aft {

// The rules between keys of config.json, of which each alone is in its range already.
// INVALID_ARGUMENT names the key that has to change.
absl::Status CheckConfigRules(const NetworkConfig& config);

}  // namespace aft

#endif  // AFT_MODEL_CONFIG_RULES_H_
