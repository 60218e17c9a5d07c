#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "prometheus/metric_family.h"

namespace aft::server {

// When the machine started, in Unix time. The kernel computes this time from the wall clock for
// each reader, so it moves when that clock is set. An object of this class reads it once.
// Thread-safe.
class BootTime {
 public:
  // `path`: a file in the format of /proc/stat.
  explicit BootTime(std::string path) : path_(std::move(path)) {}

  // nullopt: the file cannot be read, or does not have the time; the next call tries again.
  std::optional<double> Get();

 private:
  const std::string path_;
  Mutex mutex_;
  std::optional<double> time_ ABSL_GUARDED_BY(mutex_);
};

// The resources that the process uses, read from /proc, under the names of Prometheus' own client
// libraries, such as process_cpu_seconds_total. Values that /proc does not have are left out.
// Thread-safe.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace aft::server
