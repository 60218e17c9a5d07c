#pragma once

#include <vector>

#include "prometheus/metric_family.h"

namespace aft::server {

// What the process takes of the machine, read from /proc, by the names of Prometheus' own client
// libraries: process_cpu_seconds_total and so on. What /proc does not say is left out. Thread-safe.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace aft::server
