#pragma once

#include <memory>
#include <string>
#include <vector>

#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "server/observability/model_report.h"

namespace aft::server {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

using MetricFamilies = std::vector<prometheus::MetricFamily>;

// Returns the metrics of the registry, the models, the log and the process. Thread-safe.
MetricFamilies AllMetrics(const std::shared_ptr<prometheus::Registry>& registry,
                          const std::vector<ModelReport>& models);

// Returns `families` in Prometheus' text format.
std::string MetricsText(const MetricFamilies& families);

}  // namespace aft::server
