#include "server/rpc/kserve/statistics.h"

namespace aft::server::kserve {
namespace {

int64_t NowMs() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<milliseconds>(now).count();
}

}  // namespace

Statistics::Statistics(const ModelRegistry& registry) {
  for (const ModelStatus& model : registry.List()) models_[model.name] = std::make_unique<Model>();
}

void Statistics::Duration::Add(server::Duration duration) {
  const auto value = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  count.fetch_add(1, std::memory_order_relaxed);
  ns.fetch_add(value > 0 ? static_cast<uint64_t>(value) : 0, std::memory_order_relaxed);
}

void Statistics::Duration::Describe(inference::StatisticDuration& message) const {
  message.set_count(count.load(std::memory_order_relaxed));
  message.set_ns(ns.load(std::memory_order_relaxed));
}

void Statistics::Record(const std::string& model, const absl::Status& status,
                        const Timings& timings) {
  const auto found = models_.find(model);
  if (found == models_.end()) return;
  Model& statistics = *found->second;
  (status.ok() ? statistics.success : statistics.fail).Add(timings.total);
  if (!status.ok()) return;
  statistics.queue.Add(timings.queue);
  statistics.compute.Add(timings.total - timings.queue);
  statistics.last_ms.store(NowMs(), std::memory_order_relaxed);
}

void Statistics::Describe(const std::string& model, inference::ModelStatistics& message) const {
  message.set_name(model);
  const auto found = models_.find(model);
  if (found == models_.end()) return;
  const Model& statistics = *found->second;
  message.set_last_inference(
      static_cast<uint64_t>(statistics.last_ms.load(std::memory_order_relaxed)));
  inference::InferStatistics& infer = *message.mutable_inference_stats();
  statistics.success.Describe(*infer.mutable_success());
  statistics.fail.Describe(*infer.mutable_fail());
  statistics.queue.Describe(*infer.mutable_queue());
  statistics.compute.Describe(*infer.mutable_compute_infer());
  // Reading and writing tensors is part of it. perf_analyzer wants one count of all three.
  infer.mutable_compute_input()->set_count(infer.compute_infer().count());
  infer.mutable_compute_output()->set_count(infer.compute_infer().count());
  message.set_inference_count(infer.success().count());
}

void DescribeExecutions(const ModelMetrics& metrics, bool encoder,
                        inference::ModelStatistics& message) {
  if (!encoder) return message.set_execution_count(metrics.Steps());
  uint64_t rows = 0;
  uint64_t batches = 0;
  for (const auto& [size, count] : metrics.batches.Get()) {
    rows += size * count.batches;
    batches += count.batches;
    inference::InferBatchStatistics& batch = *message.add_batch_stats();
    batch.set_batch_size(size);
    batch.mutable_compute_infer()->set_count(count.batches);
    batch.mutable_compute_infer()->set_ns(static_cast<uint64_t>(count.time.count()));
  }
  message.set_inference_count(rows);
  message.set_execution_count(batches);
}

}  // namespace aft::server::kserve
