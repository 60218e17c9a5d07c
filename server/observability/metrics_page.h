#pragma once

#include <memory>
#include <vector>

#include "prometheus/registry.h"
#include "server/observability/http_server.h"
#include "server/observability/model_report.h"

namespace aft::server {

// The metrics of the registry, the models, the log and the process, in Prometheus' text format.
// Thread-safe.
HttpPage MetricsPage(const std::shared_ptr<prometheus::Registry>& registry,
                     const std::vector<ModelReport>& models);

}  // namespace aft::server
