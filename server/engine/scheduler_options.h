#pragma once

#include <cstdint>

#include "model/api/model_runner.h"
#include "server/engine/request_loop.h"
#include "server/scheduling/continuous_scheduler.h"

namespace aft::server {

// Returns the scheduler's options for an engine over `runner`. Fields of the config that are 0 have
// their computed values.
ContinuousScheduler::Options SchedulerOptions(const EngineOptions& options,
                                              const ModelRunner& runner);

// The slots that a client without a quota of its own can have at once, if quotas are strict; 0:
// they are not.
inline int32_t StrictClientSlots(const ContinuousScheduler::Options& options) {
  return options.strict_quotas ? options.max_client_slots : 0;
}

}  // namespace aft::server
