#include "server/observability/metric_maker.h"

#include <algorithm>

namespace aft::server {

using prometheus::Labels;

const std::vector<double>& LatencyBuckets() {
  static const auto& bounds = *new std::vector<double>{
      25e-6, 50e-6, 100e-6, 150e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3,
      0.1,   0.25,  0.5,    1.0,    2.5,    5.0,    10.0, 30.0,   60.0, 120.0, 300.0};
  return bounds;
}

const std::vector<double>& SizeBuckets() {
  static const auto& bounds = *new std::vector<double>{
      1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
  return bounds;
}

Labels MetricMaker::With(const Labels& more) const {
  Labels labels = labels_;
  labels.insert(more.begin(), more.end());
  return labels;
}

prometheus::Counter& MetricMaker::AddCounter(const char* name, const char* help,
                                             const Labels& more) const {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(With(more));
}

prometheus::Gauge& MetricMaker::AddGauge(const char* name, const char* help,
                                         const Labels& more) const {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(With(more));
}

prometheus::Histogram& MetricMaker::AddSeconds(const char* name, const char* help,
                                               const Labels& more) const {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  return family.Add(With(more), LatencyBuckets());
}

prometheus::Histogram& MetricMaker::AddSizes(const char* name, const char* help) const {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  return family.Add(labels_, SizeBuckets());
}

CounterByMethod MetricMaker::AddCounters(const char* name, const char* help, size_t methods) const {
  std::vector<prometheus::Counter*> counters;
  for (size_t i = 0; i < methods; ++i) {
    counters.push_back(&AddCounter(name, help, {{"method", kMethodNames[i]}}));
  }
  return CounterByMethod(std::move(counters));
}

HistogramByMethod MetricMaker::AddSecondsByMethod(const char* name, const char* help,
                                                  size_t methods, const Labels& more) const {
  std::vector<prometheus::Histogram*> histograms;
  for (size_t i = 0; i < methods; ++i) {
    Labels labels = more;
    labels.emplace("method", kMethodNames[i]);
    histograms.push_back(&AddSeconds(name, help, labels));
  }
  return HistogramByMethod(std::move(histograms));
}

void HistogramBatch::Add(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())] += 1.0;
  sum_ += value;
  ++values_;
}

void HistogramBatch::Flush() {
  if (values_ == 0) return;
  if (values_ == 1) {
    histogram_.Observe(sum_);  // ObserveMultiple also writes the buckets that have no new value
  } else {
    histogram_.ObserveMultiple(counts_, sum_);
  }
  std::fill(counts_.begin(), counts_.end(), 0.0);
  sum_ = 0.0;
  values_ = 0;
}

}  // namespace aft::server
