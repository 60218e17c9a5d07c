#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace aft::server {

// The values of a model for its metrics.
struct ModelReport {
  std::string model;
  double oldest_waiting_seconds = 0;  // of the request that has waited longest; 0: none waits
  // Since its last step was done, or since it was loaded. 0 without `version`: nothing runs.
  double last_step_age_seconds = 0;
  double device_memory_used = 0;  // of its GPU, in bytes; 0: no step has run on a GPU
  double device_memory_total = 0;
  // The version that a request without a version gets. Empty: none is loaded.
  std::string version{};
  std::string fingerprint{};
  std::string architecture{};
  std::string device{};
  std::string weight_format{};
};

// The metrics of these reports. They are made at each scrape, for two reasons: ages grow while an
// engine is stuck, and labels of versions that are no longer served disappear.
std::vector<prometheus::MetricFamily> ReportMetrics(const std::vector<ModelReport>& reports);

}  // namespace aft::server
