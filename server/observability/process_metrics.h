#pragma once

#include <vector>

#include "prometheus/metric_family.h"

namespace aft::server {

// The resources that the process uses, read from /proc, under the names of Prometheus' own client
// libraries: process_cpu_seconds_total and so on. What /proc does not have is left out.
// Thread-safe.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace aft::server
