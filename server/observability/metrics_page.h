#pragma once

#include <memory>
#include <string>
#include <vector>

#include "prometheus/registry.h"
#include "server/observability/model_report.h"

namespace aft::server {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// The metrics of the registry, the models, the log and the process, in Prometheus' text format.
// Thread-safe.
std::string MetricsText(const std::shared_ptr<prometheus::Registry>& registry,
                        const std::vector<ModelReport>& models);

}  // namespace aft::server
