#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/labels.h"
#include "prometheus/registry.h"
#include "server/observability/methods.h"

// The parts of which the structs of metrics.h are made. Thread-safe, except for HistogramBatch.
namespace aft::server {

// Upper bounds of all latency histograms, in seconds, 25 us to 5 minutes: small models decode a
// token in under 100 us.
const std::vector<double>& LatencyBuckets();

// Upper bounds of aft_step_rows and aft_step_tokens: powers of two, 1 to 65536.
const std::vector<double>& SizeBuckets();

// A part of a gauge that several objects share, such as the versions of a model. The gauge is the
// sum of the last values of all parts. A part that is destroyed takes its value out of the sum.
class GaugePart {
 public:
  explicit GaugePart(prometheus::Gauge& sum) : sum_(sum) {}
  ~GaugePart() { Set(0); }
  GaugePart(const GaugePart&) = delete;
  GaugePart& operator=(const GaugePart&) = delete;

  // Costs only a load if the value does not change, as from one step to the next.
  void Set(double value) {
    if (value_.load(std::memory_order_relaxed) == value) return;
    sum_.Increment(value - value_.exchange(value));
  }
  void Add(double change) {
    value_ += change;
    sum_.Increment(change);
  }
  double Value() const { return value_; }  // of this part alone

 private:
  prometheus::Gauge& sum_;
  std::atomic<double> value_{0};
};

// A metric for each of the first methods.
template <typename Metric>
class ByMethod {
 public:
  explicit ByMethod(std::vector<Metric*> metrics) : metrics_(std::move(metrics)) {}

  // REQUIRES: there is a metric for that method.
  Metric& operator[](Method method) const {
    const auto index = static_cast<size_t>(method);
    AFT_CHECK(index < metrics_.size());
    return *metrics_[index];
  }
  // The sum of all, for counters.
  double Value() const {
    double sum = 0;
    for (const Metric* metric : metrics_) sum += metric->Value();
    return sum;
  }

 private:
  const std::vector<Metric*> metrics_;
};

using CounterByMethod = ByMethod<prometheus::Counter>;
using HistogramByMethod = ByMethod<prometheus::Histogram>;

// Registers metrics. Registering a name again gives the existing family: models share families and
// differ by their labels.
class MetricMaker {
 public:
  // Every metric carries `labels`. The registry must outlive the metrics.
  MetricMaker(prometheus::Registry& registry, prometheus::Labels labels)
      : registry_(registry), labels_(std::move(labels)) {}

  // `more`: further labels of this metric.
  prometheus::Counter& AddCounter(const char* name, const char* help,
                                  const prometheus::Labels& more = {}) const;
  prometheus::Gauge& AddGauge(const char* name, const char* help,
                              const prometheus::Labels& more = {}) const;
  GaugePart AddPart(const char* name, const char* help, const prometheus::Labels& more = {}) const {
    return GaugePart(AddGauge(name, help, more));
  }
  prometheus::Histogram& AddSeconds(const char* name, const char* help,
                                    const prometheus::Labels& more = {}) const;  // LatencyBuckets
  prometheus::Histogram& AddSizes(const char* name, const char* help) const;     // SizeBuckets

  // One for each of the first `methods`, with label method.
  CounterByMethod AddCounters(const char* name, const char* help, size_t methods) const;
  HistogramByMethod AddSecondsByMethod(const char* name, const char* help, size_t methods,
                                       const prometheus::Labels& more = {}) const;

 private:
  prometheus::Labels With(const prometheus::Labels& more) const;

  prometheus::Registry& registry_;
  const prometheus::Labels labels_;
};

// Counters that differ by label `reason`, for each value of an enum that counts from 0.
template <typename Reason, size_t kCount>
class CounterByReason {
 public:
  // `reasons`: in the order of the enum.
  CounterByReason(const MetricMaker& make, const char* name, const char* help,
                  const std::array<const char*, kCount>& reasons) {
    for (size_t i = 0; i < kCount; ++i) {
      counters_[i] = &make.AddCounter(name, help, {{"reason", reasons[i]}});
    }
  }

  prometheus::Counter& operator()(Reason reason) const {
    return *counters_[static_cast<size_t>(reason)];
  }

 private:
  std::array<prometheus::Counter*, kCount> counters_;
};

// Collects observations of one thread and adds them to a histogram together. prometheus-cpp takes a
// lock for each Observe, so a step with many streams would take one for each token.
// Thread-compatible.
class HistogramBatch {
 public:
  // `bounds` are the histogram's; both must outlive this object.
  HistogramBatch(prometheus::Histogram& histogram, const std::vector<double>& bounds)
      : histogram_(histogram), bounds_(bounds), counts_(bounds.size() + 1) {}

  void Add(double value);
  // Publishes what was added since the last Flush.
  void Flush();

 private:
  prometheus::Histogram& histogram_;
  const std::vector<double>& bounds_;
  std::vector<double> counts_;  // one per bound, then +Inf
  double sum_ = 0.0;
  int64_t values_ = 0;
};

}  // namespace aft::server
