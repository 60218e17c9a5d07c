#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "server/engine/request.h"
#include "server/registry/model_registry.h"

namespace aft::server::kserve {

// What ModelStatistics tells of each model: of the requests that came through this service.
// Thread-safe.
class Statistics {
 public:
  explicit Statistics(const ModelRegistry& registry);

  // A request for `model`, if that is one, has ended.
  void Record(const std::string& model, const absl::Status& status, const Timings& timings);

  // All but the version and the executions.
  void Describe(const std::string& model, inference::ModelStatistics& message) const;

 private:
  struct Duration {
    void Add(server::Duration duration);
    void Describe(inference::StatisticDuration& message) const;

    std::atomic<uint64_t> count{0};
    std::atomic<uint64_t> ns{0};
  };
  struct Model {
    Duration success;
    Duration fail;
    Duration queue;    // of those that began
    Duration compute;  // likewise
    std::atomic<int64_t> last_ms{0};
  };

  std::map<std::string, std::unique_ptr<Model>> models_;  // the map itself never changes
};

// What a model has executed, requests of other services included: steps; of an encoder, batches
// that ran without an error, their rows (inference_count) and what each size took.
void DescribeExecutions(const ModelMetrics& metrics, bool encoder,
                        inference::ModelStatistics& message);

}  // namespace aft::server::kserve
