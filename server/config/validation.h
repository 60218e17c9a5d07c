#pragma once

#include "absl/status/status.h"
#include "server/config/config.h"

namespace aft::server {

// INVALID_ARGUMENT, starting with the path of a field that is out of range, e.g.
// "models[0].slots: must be in [1, 65536], got 0".
absl::Status ValidateServerConfig(const ServerConfig& config);

// Whether a running server can switch to `next`. Only log.level and the fields of the repository
// other than its folder may differ. INVALID_ARGUMENT as ValidateServerConfig; FAILED_PRECONDITION
// names every other field that differs.
absl::Status CheckReload(ServerConfig running, ServerConfig next);

}  // namespace aft::server
