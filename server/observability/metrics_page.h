#pragma once

#include <memory>

#include "prometheus/registry.h"
#include "server/observability/http_server.h"

namespace aft::server {

// The metrics of the registry and those of the log, in Prometheus' text format. Thread-safe.
HttpPage MetricsPage(const std::shared_ptr<prometheus::Registry>& registry);

}  // namespace aft::server
