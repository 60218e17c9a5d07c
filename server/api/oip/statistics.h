#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "inference/grpc_service.pb.h"
#include "server/engine/request.h"
#include "server/registry/model_table.h"

namespace aft::server::oip {

// The statistics that ModelStatistics returns for each version of each model: the requests through
// this service, and what the version has executed. A version that has left the registry is
// forgotten. Thread-safe.
class Statistics {
 public:
  explicit Statistics(const ModelTable& registry) : registry_(registry) {}

  // A request for `model` has ended.
  void Record(const ServedModel& model, const absl::Status& status, const Timings& timings);

  void Describe(const std::string& model, const VersionStatus& version,
                inference::ModelStatistics& message) const;

 private:
  using Key = std::pair<std::string, std::string>;  // name and version
  struct Duration {
    void Add(server::Duration duration);
    void Describe(inference::StatisticDuration& message) const;

    uint64_t count = 0;
    uint64_t ns = 0;
  };
  struct Version {
    Duration success;
    Duration fail;
    Duration queue;    // of the requests that began
    Duration compute;  // of the requests that began
    int64_t last_ms = 0;
  };

  void DescribeRequests(const Key& key, inference::ModelStatistics& message) const;
  Version& Find(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ModelTable& registry_;
  mutable Mutex mutex_;
  std::map<Key, Version> versions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server::oip
