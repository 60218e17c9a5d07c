#pragma once

#include <vector>

#include "prometheus/metric_family.h"

namespace aft::server {

// The resources that the process uses, read from /proc, under the names of Prometheus' own client
// libraries, such as process_cpu_seconds_total. Values that /proc does not have are left out.
// Thread-safe.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace aft::server
