#include "server/observability/metrics_page.h"

#include <iterator>
#include <utility>

#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"
#include "server/observability/log.h"
#include "server/observability/process_metrics.h"
#include "server/observability/slot_ratio.h"

namespace aft::server {
namespace {

// The log's own metric, which belongs to the process and not to a registry.
prometheus::MetricFamily LogMetrics() {
  prometheus::ClientMetric dropped;
  dropped.counter.value = static_cast<double>(log::dropped_lines());
  return {.name = "aft_log_lines_dropped_total",
          .help =
              "Log lines dropped, because the reader of stderr did not keep up, or stderr refused "
              "them (a full disk, or a reader that has ended).",
          .type = prometheus::MetricType::Counter,
          .metric = {dropped}};
}

}  // namespace

MetricFamilies AllMetrics(const std::shared_ptr<prometheus::Registry>& registry,
                          const std::vector<ModelReport>& models) {
  MetricFamilies families = WithSlotRatio(registry).Collect();
  for (MetricFamilies more : {ReportMetrics(models), ProcessMetrics()}) {
    std::move(more.begin(), more.end(), std::back_inserter(families));
  }
  families.push_back(LogMetrics());
  return families;
}

std::string MetricsText(const MetricFamilies& families) {
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace aft::server
