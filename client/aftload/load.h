#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "client/aftload/load_options.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

// Runs the load. It ends when all requests are done, or after the duration and the drain, when it
// cuts the streams that still run. `cancel` ends it early; the measurements so far are returned.
// `on_progress` (may be empty) is called about once a second during the measurement, on this
// thread. Returns an error only if a target does not answer before the load begins. Failed requests
// are counted.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, CancelToken& cancel,
                                   const std::function<void(const Progress&)>& on_progress = {});

}  // namespace aft::client
