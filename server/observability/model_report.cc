#include "server/observability/model_report.h"

namespace aft::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

MetricFamily Gauges(const char* name, const char* help) {
  return {.name = name, .help = help, .type = prometheus::MetricType::Gauge, .metric = {}};
}

void Add(MetricFamily& family, double value, std::vector<ClientMetric::Label> labels) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.gauge.value = value;
  metric.label = std::move(labels);
}

}  // namespace

std::vector<MetricFamily> ReportMetrics(const std::vector<ModelReport>& reports) {
  MetricFamily waiting = Gauges("aft_oldest_waiting_seconds",
                                "Wait of the request that has waited longest; 0: none waits.");
  MetricFamily step =
      Gauges("aft_last_step_age_seconds", "Time since the last step was done, idle or not.");
  MetricFamily memory_used =
      Gauges("aft_device_memory_used_bytes", "Memory of the model's GPU in use, by all programs.");
  MetricFamily memory = Gauges("aft_device_memory_bytes", "Memory of the model's GPU.");
  MetricFamily info = Gauges("aft_model_info", "Constant 1; the labels say what is served.");
  for (const ModelReport& report : reports) {
    Add(waiting, report.oldest_waiting_seconds, {{"model", report.model}});
    Add(memory_used, report.device_memory_used, {{"model", report.model}});
    Add(memory, report.device_memory_total, {{"model", report.model}});
    if (!report.version.empty() || report.last_step_age_seconds > 0) {
      Add(step, report.last_step_age_seconds, {{"model", report.model}});
    }
    if (report.version.empty()) continue;
    Add(info, 1,
        {{"model", report.model},
         {"version", report.version},
         {"fingerprint", report.fingerprint},
         {"architecture", report.architecture},
         {"device", report.device},
         {"weight_format", report.weight_format}});
  }
  return {waiting, step, memory_used, memory, info};
}

}  // namespace aft::server
