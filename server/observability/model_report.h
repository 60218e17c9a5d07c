#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace aft::server {

// The values of a model for its metrics.
struct ModelReport {
  std::string model;
  double oldest_waiting_seconds = 0;  // of the request that has waited longest; 0: none waits
  double last_step_age_seconds = 0;   // since its last step was done, or since it was loaded
  // The version that a request without a version gets. Empty: none is loaded.
  std::string version{};
  std::string fingerprint{};
  std::string architecture{};
  std::string device{};
  std::string weight_format{};
};

// Their metrics, made at each scrape: ages, so that they grow while an engine is stuck, and labels
// of what is served now, so that none is left of what was served before.
std::vector<prometheus::MetricFamily> ReportMetrics(const std::vector<ModelReport>& reports);

}  // namespace aft::server
