#include "server/engine/scheduler_options.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "model/api/snapshot_bytes.h"
#include "server/config/config.h"

namespace aft::server {

ContinuousScheduler::Options SchedulerOptions(const EngineOptions& options,
                                              const ModelRunner& runner) {
  const SchedulingConfig& config = options.scheduling;
  const int32_t slots = runner.slots();
  const int32_t reserved = config.reserved_slots == 0 ? slots / 16 : config.reserved_slots;
  const int64_t parked = options.model.parking_bytes / MaxSnapshotBytes(runner.info());
  return {.slots = slots,
          .max_step_tokens = options.model.max_step_tokens,
          .max_in_flight = runner.max_steps_in_flight(),
          .age = config.age,
          .max_client_slots =
              config.max_client_slots == 0 ? std::max(slots / 2, 1) : config.max_client_slots,
          .reserved_slots = std::clamp(reserved, 0, slots - 1),
          .strict_quotas = config.strict_quotas,
          .max_parked =
              static_cast<int32_t>(std::min<int64_t>(parked, std::numeric_limits<int32_t>::max())),
          .itl_target = config.itl_target};
}

}  // namespace aft::server
