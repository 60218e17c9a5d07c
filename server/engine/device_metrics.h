#ifndef AFT_SERVER_ENGINE_DEVICE_METRICS_H_
#define AFT_SERVER_ENGINE_DEVICE_METRICS_H_

#include "model/api/model_runner.h"
#include "server/observability/metrics.h"

namespace aft::server {

// After each step of a runner: what its device says. `stats` is null on the CPU.
inline void PublishDeviceStats(const DeviceStats* stats, ModelMetrics& metrics) {
  if (stats == nullptr) return;
  metrics.device_memory_used.Set(static_cast<double>(stats->memory_used));
  metrics.device_memory_total.Set(static_cast<double>(stats->memory_total));
  metrics.device_step_seconds.Observe(stats->step_seconds);
  (stats->step_was_graph ? metrics.device_graph_steps : metrics.device_eager_steps).Increment();
}

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_DEVICE_METRICS_H_
