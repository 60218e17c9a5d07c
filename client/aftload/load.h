#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "client/aftload/load_options.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

// Runs the load; ends by itself once the requests are done, or after duration and drain, and cuts
// the streams that still run then. `cancel` ends it early; what was measured so far is returned.
// `on_progress` (may be empty) is called about every second of the measurement, on this thread.
// Errors only when a target does not answer before the load begins; failed requests are counted.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, CancelToken& cancel,
                                   const std::function<void(const Progress&)>& on_progress = {});

}  // namespace aft::client
