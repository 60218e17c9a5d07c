#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "client/aftload/load_options.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

// The distance between the LoadOptions::first_index of runs that are to share no request.
inline constexpr uint64_t kRunStride = uint64_t{1} << 41;

// Runs the load. It ends when all requests are done, or after the duration and the drain, when it
// cuts the streams that still run. `cancel` ends it early; the measurements so far are returned.
// `on_progress` (may be empty) is called about once a second during the measurement, on this
// thread. Returns an error only if a target does not answer before the load begins. Failed requests
// are counted.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, CancelToken& cancel,
                                   const std::function<void(const Progress&)>& on_progress = {});

}  // namespace aft::client
