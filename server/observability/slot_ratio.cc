#include "server/observability/slot_ratio.h"

#include <algorithm>
#include <string>

namespace aft::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

const MetricFamily* Find(const std::vector<MetricFamily>& families, const std::string& name) {
  const auto found =
      std::find_if(families.begin(), families.end(),
                   [&name](const MetricFamily& family) { return family.name == name; });
  return found == families.end() ? nullptr : &*found;
}

// The value of the gauge with these labels; 0 if there is none.
double Value(const MetricFamily& family, const std::vector<ClientMetric::Label>& labels) {
  for (const ClientMetric& metric : family.metric) {
    if (metric.label == labels) return metric.gauge.value;
  }
  return 0;
}

}  // namespace

std::vector<MetricFamily> WithSlotRatio::Collect() const {
  std::vector<MetricFamily> families = source_->Collect();
  const MetricFamily* used = Find(families, "aft_slots_used");
  const MetricFamily* slots = Find(families, "aft_slots");
  if (used == nullptr || slots == nullptr) return families;
  MetricFamily ratio = {.name = "aft_slots_used_ratio",
                        .help = "Part of the slots that hold a sequence, 0 to 1.",
                        .type = prometheus::MetricType::Gauge,
                        .metric = {}};
  for (const ClientMetric& total : slots->metric) {
    ClientMetric& metric = ratio.metric.emplace_back();
    metric.label = total.label;
    if (total.gauge.value > 0) {
      metric.gauge.value = Value(*used, total.label) / total.gauge.value;
    }
  }
  families.push_back(std::move(ratio));
  return families;
}

}  // namespace aft::server
